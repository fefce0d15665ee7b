"""The work of the browser's main thread while a long answer streams into a page.

The answer is 100 kB of one open code block with 2,000 lines. Everything except its end arrives at
once. The end arrives at 100 words a second, and meanwhile Chromium's trace records the work of the
main thread in each sixtieth of a second. The limit is a page with one element to which a timer
adds the same text. There are no figures if Chromium is not installed.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench
from benchmarks.figures import Figure, percentile
from benchmarks.processes import running_server
from scripts.find_browser import find_browser
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

if TYPE_CHECKING:
    from playwright.sync_api import Page

LINES, LINE_CHARS = 2_000, 50
CHUNK_CHARS, CHUNKS_PER_SECOND = 7, 100
SECONDS, QUICK_SECONDS = 15, 8
SETTLE_SECONDS = 3
"""The last part of the seconds above, which is not traced."""

ADD_WORDS = """
([chunk, line, wait]) => {
  const pre = document.querySelector("pre");
  let written = 0;
  const write = () => {
    const text = (written += chunk) % line < chunk ? "words \\n" : "words  ";
    if (pre.lastChild?.length < 2000) pre.lastChild.appendData(text);
    else pre.append(text);
    pre.scrollTop = pre.scrollHeight;
  };
  setInterval(() => requestAnimationFrame(write), wait);
}
"""

FRAME_US, LONG_TASK_US = 1_000_000 / 60, 50_000
SIZE = {"width": 1360, "height": 900}


def measure(bench: Bench) -> list[Figure]:
    path = find_browser()
    if path is None:
        return []
    wire = WireThread()
    wire.start()
    settings = {"ANTHROPIC_API_KEY": wire.key, "ANTHROPIC_BASE_URL": wire.url}
    with running_server(bench.data_dir, settings=settings) as server:
        address = f"http://127.0.0.1:{server.port}"
        session = f"{address}/s/{bench.new_session().uuid}/"
        seconds = QUICK_SECONDS if bench.is_quick else SECONDS
        tasks = _trace(path, wire, address + server.link, session, seconds)
    wire.stop()
    work = work_of_frames(tasks)
    bare = work_of_frames(_trace_bare(path, seconds))
    name = "browser, 2,000 lines of code open"
    return [
        Figure(
            name=f"{name}: work in 1/60 s, p95",
            value=percentile(work, 0.95) / 1000,
            unit="ms",
            at_most=4,
            limit=percentile(bare, 0.95) / 1000,
        ),
        Figure(
            name=f"{name}: tasks over 50 ms",
            value=sum(task > LONG_TASK_US for _, task in tasks),
            at_most=0,
        ),
        Figure(
            name=f"{name}: longest task", value=max(task for _, task in tasks) / 1000, unit="ms"
        ),
        Figure(
            name=f"{name}: main thread busy",
            value=_busy(work),
            unit="%",
            limit=_busy(bare),
        ),
    ]


def _busy(work: Sequence[int]) -> float:
    return 100 * sum(work) / (len(work) * FRAME_US)


def _trace(
    path: str, wire: WireThread, link: str, session: str, seconds: int
) -> list[tuple[int, int]]:
    """Return the tasks of the main thread while the end of the answer arrived."""
    lines = [f"x = read(x)  # line {number} " for number in range(LINES)]
    text = "```python\n" + "\n".join(f"{line:<{LINE_CHARS - 1}}" for line in lines) + "\n"
    ahead = len(text) // CHUNK_CHARS - seconds * CHUNKS_PER_SECOND
    wire.enqueue(Scenario(text=text, chunk=CHUNK_CHARS, rate=CHUNKS_PER_SECOND, ahead=ahead))
    with _open_page(path) as page:
        page.goto(link)
        page.goto(session)
        page.wait_for_selector("html[data-connected], textarea:not([disabled])")
        message = page.locator("textarea").first
        message.fill("Write a long program.")
        message.press("Enter")
        begun = f"line {ahead * CHUNK_CHARS // LINE_CHARS} "
        page.wait_for_function(
            "begun => document.body.textContent.includes(begun)", arg=begun, timeout=60_000
        )
        events = _watch(page, seconds)
        page.wait_for_function(
            "last => document.body.textContent.includes(last)",
            arg=f"line {LINES - 1} ",
            timeout=60_000,
        )
    return main_tasks(events)


def _trace_bare(path: str, seconds: int) -> list[tuple[int, int]]:
    """Return the tasks of the main thread of a page that only adds text and scrolls to its end."""
    with _open_page(path) as page:
        page.set_content('<pre style="height: 600px; overflow: auto"></pre>')
        page.evaluate(ADD_WORDS, [CHUNK_CHARS, LINE_CHARS, 1000 / CHUNKS_PER_SECOND])
        events = _watch(page, seconds)
    return main_tasks(events)


@contextmanager
def _open_page(path: str) -> Iterator["Page"]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
        browser.close()


def _watch(page: "Page", seconds: int) -> list[dict[str, Any]]:
    browser = page.context.browser
    assert browser is not None
    browser.start_tracing(page=page, categories=["disabled-by-default-devtools.timeline"])
    page.wait_for_timeout(1000 * (seconds - SETTLE_SECONDS))
    events: list[dict[str, Any]] = json.loads(browser.stop_tracing())["traceEvents"]
    return events


def main_tasks(events: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return the start and duration of each task of the page's main thread, in microseconds."""
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        thread = event["pid"], event["tid"]
        if thread in mains and event["name"] == "RunTask" and event["ph"] == "X":
            tasks[thread].append((event["ts"], event["dur"]))
    # The other threads belong to pages that are not shown.
    return max(tasks.values(), key=lambda done: sum(took for _, took in done))


def work_of_frames(tasks: Sequence[tuple[int, int]]) -> list[int]:
    """Return the microseconds of work in each sixtieth of a second.

    A task counts in the sixtieth in which it starts.
    """
    first, last = min(tasks)[0], max(tasks)[0]
    work = Counter[int]()
    for began, took in tasks:
        work[int((began - first) // FRAME_US)] += took
    return [work[number] for number in range(int((last - first) // FRAME_US) + 1)]
