"""Contents of answers in the browser: formulas, diagrams, tables, long code and footnotes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e.accessibility import violations_everywhere
from tests.e2e.conftest import WIDE, Chat, Server, take_picture
from tests.rendering.hostile_content import HOSTILE_DIAGRAMS, HOSTILE_FORMULAS
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

FLOWCHART = """```mermaid
flowchart LR
  A[Seed] --> B{Rain?}
  B -->|yes| C[Bean]
  B -->|no| D[Water]
```
"""
ANSWER = rf"""
The area of a bed is $A = \pi r^2$, and its price $5 or $10. Beans grow as[^1]

$$
N(t) = \frac{{K}}{{1 + \left(\frac{{K - N_0}}{{N_0}}\right) e^{{-rt}}}}, \qquad
\begin{{pmatrix}} a & b \\ c & d \end{{pmatrix}}
$$

> [!WARNING]
> Frost *kills* beans.

> [!TIP]
> Water in the morning.

| bed | price | sum |
|:----|------:|-----|
| `a` | $12   | $\frac12$ |
| b, "c" | =1+1 | x \| y<br>z |

{FLOWCHART}
```python title="garden/beds.py"
def plant(what: str) -> str:
    return f"{{what}} planted"
```

```python
{"".join(f"row_{n} = {n}\n" for n in range(90))}```

[^1]: As measured in *May*, see $N_0$.
"""


def answer_lines(uuid: str, *texts: str) -> list[dict[str, object]]:
    """Return the lines of an import file with a session of these answers."""
    lines: list[dict[str, object]] = [
        {"type": "session", "uuid": uuid, "workspace": "example", "title": "Beans"}
    ]
    for number, text in enumerate(texts, 1):
        lines.append({"type": "turn", "number": number, "role": "assistant", "content": text})
        event = {"event_type": "assistant_text", "payload": {"text": text}}
        lines.append({"type": "event", "seq": number, "turn": number, **event})
    return lines


def open_answer(server: Server, page: Page, *texts: str) -> None:
    uuid = str(uuid4())
    server.import_lines(answer_lines(uuid, *texts))
    page.goto(f"{server.url}/s/{uuid}/")


def sent_requests(page: Page) -> list[str]:
    """Return a list that collects the addresses of requests that the page's policy lets through."""
    asked: list[str] = []
    page.on("requestfinished", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda one: one.failure == "csp" or asked.append(one.url))
    return asked


def drawing(page: Page) -> str:
    expect(page.locator(".code.drawn iframe").first).to_be_visible()
    return page.frame_locator(".drawn iframe").first.locator("svg").text_content() or ""


def test_rich_answers_are_accessible_and_their_parts_can_be_saved(
    server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    tab = open_context(permissions=["clipboard-read", "clipboard-write"]).new_page()
    open_answer(server, tab, ANSWER)
    tab.locator("[data-lang=mermaid]").scroll_into_view_if_needed()
    assert "Seed" in drawing(tab)
    tab.locator(".alert").first.scroll_into_view_if_needed()
    assert violations_everywhere(tab, "rich-answer", within="#rows") == []
    for name in ("[data-lang=mermaid]", ".note"):
        tab.locator(name).scroll_into_view_if_needed()
        take_picture(tab, f"rich-answer{re.sub(r'\W', '-', name)}")
    tab.emulate_media(color_scheme="light")
    tab.set_viewport_size({"width": 360, "height": 740})
    tab.locator("[data-lang=mermaid]").scroll_into_view_if_needed()
    take_picture(tab, "rich-answer-diagram-narrow")
    tab.set_viewport_size(WIDE)

    copied = "navigator.clipboard.readText()"
    tab.get_by_role("button", name="Copy as CSV").click()
    expect(tab.locator("#announce")).to_have_text("Copied")
    assert tab.evaluate(copied) == (
        'bed,price,sum\r\na,$12,\\frac12\r\n"b, ""c""",\'=1+1,"x | y\nz"\r\n'
    )
    tab.get_by_role("button", name="Copy as Markdown").click()
    expect(tab.locator(".table-acts .copied")).to_have_count(2)
    assert tab.evaluate(copied) == (
        "| bed | price | sum |\n| :-- | --: | --- |\n"
        '| `a` | $12 | $\\frac12$ |\n| b, "c" | =1+1 | x \\| y<br>z |\n'
    )
    tab.locator("[data-lang=mermaid]").scroll_into_view_if_needed()
    drawing(tab)  # once the diagram is drawn, the page does not move any more
    with tab.expect_download() as saved:
        tab.locator("[data-file]").get_by_role("button", name="Download").click()
    assert saved.value.suggested_filename == "beds.py"
    assert Path(saved.value.path()).read_text().startswith("def plant(what")
    tab.get_by_role("button", name="Show all 90 lines").click()
    expect(tab.get_by_role("button", name="Show less")).to_be_visible()
    tab.get_by_role("button", name="Footnote 1").click()
    expect(tab.locator(".note")).to_be_focused()


ARABIC = """هذه فقرة!

- بند!

  ```
  code!
  ```
"""
PLACES = """
(selector) => {
  const element = document.querySelector(`#rows .md ${selector}`);
  const text = document.createTreeWalker(element, NodeFilter.SHOW_TEXT).nextNode();
  const edgeOf = (start) => {
    const range = document.createRange();
    range.setStart(text, start);
    range.setEnd(text, start + 1);
    return range.getBoundingClientRect().x;
  };
  const { left, right } = element.getBoundingClientRect();
  const last = text.data.trimEnd().length - 1;
  return { first: edgeOf(0), last: edgeOf(last), middle: (left + right) / 2 };
}
"""


ARABIC_BLOCKS = """> - بند

> [!WARNING]
> الصقيع يقتل.

| سرير | سعر |
|---|---|
| ا | ب |

فقرة[^1]

[^1]: حاشية.
"""


def test_texts_run_in_their_own_direction_and_formulas_are_not_cut_off(
    server: Server, tab: Page
) -> None:
    """Wide formulas scroll on the screen and are smaller on paper.

    Terms that are struck out keep their line on paper. Bars of quotations and alerts, numbers of
    footnotes, tables, and titles of alerts, which are in the reader's language, are on the side
    where their text begins.
    """
    wide = " + ".join(f"x_{{{number}}}" for number in range(40))
    open_answer(
        server,
        tab,
        ARABIC,
        f"$$\n{wide}\n$$\n\nText ${wide}$ and $x$.",
        r"$\cancel{a}$ $\bcancel{b}$ $\xcancel{c}$",
        ARABIC_BLOCKS,
        "> - item\n\n> [!WARNING]\n> Frost.\n\n[^1]: A note.",
    )
    for selector, is_turned in (("p", True), ("li p", True), ("pre code", False)):
        at = tab.evaluate(PLACES, selector)
        assert (at["last"] < at["first"]) == is_turned, selector
        assert (at["first"] > at["middle"]) == is_turned, selector

    widths = """all => all.map((one) => {
      const range = new Range();
      range.selectNodeContents(one);
      return Math.round(range.getBoundingClientRect().width);
    })"""
    formulas = tab.locator("#rows .row").nth(1).locator("math")
    # A loaded page has its style sheet, but maybe not yet the script that measures formulas.
    script = tab.wait_for_function("""() => performance.getEntriesByType("resource")
      .find(({ name }) => name.includes("/js/rich."))?.name""")
    script.evaluate("(address) => import(address).then(() => null)")
    assert [width > 1000 for width in formulas.evaluate_all(widths)] == [True, True, False]
    scrolls = """all => all.map((one) => {
      const [own, around] = [one, one.parentElement].map((box) => box.getBoundingClientRect());
      return own.right < around.right + 4 && one.scrollWidth > one.clientWidth;
    })"""
    assert formulas.evaluate_all(scrolls)[1:] == [True, False]
    tab.pdf()  # the page measures its formulas for paper and keeps the result
    tab.emulate_media(media="print")
    printed = formulas.evaluate_all(widths)
    assert [500 < width < 700 for width in printed] == [True, True, False]
    tab.emulate_media(media="screen")
    assert [width > 1000 for width in formulas.evaluate_all(widths)] == [True, True, False]

    # The line in the middle of a gradient is perpendicular to the gradient's direction.
    found = tab.locator("menclose")
    expect(found.last).to_have_css("print-color-adjust", "exact")
    drawn = "all => all.map((one) => getComputedStyle(one).backgroundImage)"
    up, down = "to right bottom", "to right top"
    shown = [re.findall(r"to \w+ \w+", image) for image in found.evaluate_all(drawn)]
    assert shown == [[up], [down], [up, down]]

    expect(tab.locator(".note")).to_have_count(2)
    for row, bar, side in ((3, "borderRightWidth", "right"), (4, "borderLeftWidth", "left")):
        of = tab.locator("#rows .row").nth(row)
        for selector in ("blockquote", ".alert"):
            assert of.locator(selector).evaluate(f"one => getComputedStyle(one).{bar}") == "3px"
        edge = """(one, side) => {
          const range = document.createRange();
          range.selectNodeContents(one);
          return Math.abs(range.getBoundingClientRect()[side]
            - one.closest(".alert, .note, .table-wrap").getBoundingClientRect()[side]);
        }"""
        for selector in (".alert-title", ".note-label", "table"):
            for found in of.locator(selector).all():
                assert found.evaluate(edge, side) < 24, selector


def test_a_streamed_answer_ends_up_like_a_loaded_one(chat: Chat, wire: WireThread) -> None:
    """Streamed thinking also runs in its own direction."""
    wire.enqueue(Scenario(thinking="هذه فقرة!", hang_after=99))
    chat.send("beans")
    body = chat.page.locator("#draft .think > .md")
    expect(body).to_contain_text("!")
    chat.page.locator("#draft .think summary").click()
    at = chat.page.evaluate(PLACES.replace("#rows .md", "#draft"), ".think > .md")
    assert at["last"] < at["first"]
    assert at["first"] > at["middle"]
    chat.page.keyboard.press("Escape")
    chat.wait_idle()

    wire.enqueue(Scenario(text=ANSWER))
    chat.ask("beans")
    chat.page.locator("[data-lang=mermaid]").scroll_into_view_if_needed()
    drawing(chat.page)
    bodies = "[...document.querySelectorAll('#rows .row > .md')].map((one) => one.innerHTML)"
    live = re.sub("<iframe.*?</iframe>", "", chat.page.evaluate(bodies)[-1])
    assert '<math class="rich" alttext="A = \\pi r^2">' in live
    chat.page.get_by_role("button", name="Source").click()
    expect(chat.page.locator("[data-lang=mermaid] pre")).to_be_visible()
    chat.page.reload()
    chat.page.locator("[data-lang=mermaid]").scroll_into_view_if_needed()
    drawing(chat.page)
    loaded = re.sub("<iframe.*?</iframe>", "", chat.page.evaluate(bodies)[-1])
    folded = '<button type="button" class="unfold-code" data-action="unfold-code">'
    loaded = re.sub(f"{folded}.*?</button>", "", loaded).replace(" short", "")
    assert loaded == live


# The attempts of a script in the frame. The outer page and the server show whether one succeeded.
ATTACK = """
async () => {
  const attempt = async (what) => { try { return await what(); } catch { return "refused"; } };
  const outcome = {
    origin: self.origin,
    cookie: await attempt(() => document.cookie),
    parent: await attempt(() => parent.document.title),
    storage: await attempt(() => String(localStorage)),
    session: await attempt(() => String(sessionStorage)),
    database: await attempt(() => new Promise((done, fail) => {
      const asked = indexedDB.open("x");
      Object.assign(asked, { onsuccess: () => done("opened"), onerror: fail });
    })),
    cache: await attempt(() => caches.keys().then(String)),
    network: await attempt(() => fetch("/healthz").then(() => "sent")),
    elsewhere: await attempt(
      () => fetch("http://127.0.0.1:9/x", { mode: "no-cors" }).then(() => "sent")
    ),
    beacon: String(navigator.sendBeacon("/beacon", "x")),
    socket: await attempt(() => new Promise((done, fail) => {
      const socket = new WebSocket(`ws://${new URL(location.href).host}/ws/s/x/`);
      Object.assign(socket, { onopen: () => done("opened"), onerror: fail });
    })),
    image: await attempt(() => new Promise((done, fail) => {
      const image = Object.assign(new Image(), { onload: () => done("loaded"), onerror: fail });
      image.src = "/static/favicon.svg";
    })),
    window: await attempt(() => String(window.open("/"))),
    worker: await attempt(() => new Promise((done, fail) => {
      const worker = new Worker(URL.createObjectURL(new Blob(["postMessage(1)"])));
      Object.assign(worker, { onmessage: () => done("ran"), onerror: fail });
    })),
    eval: await attempt(() => String(eval("1"))),
  };
  await attempt(() => { top.location = "/away"; });
  const link = document.createElement("a");
  Object.assign(link, { href: "http://127.0.0.1:9/?x", target: "_top" });
  document.body.append(link);
  link.click();
  return outcome;
}
"""
NOTHING = {
    "origin": "null",
    **dict.fromkeys(("cookie", "parent", "storage", "session", "database", "cache"), "refused"),
    **dict.fromkeys(("network", "elsewhere", "socket", "image", "worker", "eval"), "refused"),
    "window": "null",
}


@pytest.mark.noisy
def test_a_diagram_reaches_no_cookie_parent_storage_or_network(
    server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    context = open_context()
    page = context.new_page()
    open_answer(server, page, FLOWCHART)
    drawing(page)
    frame = next(one for one in page.frames if one.url.endswith("/diagram/"))
    asked = sent_requests(page)
    address = page.url
    outcome = frame.evaluate(ATTACK)
    assert outcome.pop("beacon") in ("true", "false")  # says only that it was queued
    assert outcome == NOTHING
    assert page.url == address
    assert asked == []


@pytest.mark.noisy
def test_hostile_texts_run_nothing_and_load_nothing(
    server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    """The page has all formulas and a few diagrams. A frame then draws every diagram."""
    page = open_context().new_page()
    diagrams = [f"```mermaid\n{text}\n```\n" for text in HOSTILE_DIAGRAMS]
    open_answer(server, page, FLOWCHART, *HOSTILE_FORMULAS, *diagrams[:3])
    page.locator("[data-lang=mermaid]").first.scroll_into_view_if_needed()
    drawing(page)
    asked = sent_requests(page)
    found = page.evaluate(DRAW_ALL, json.loads(json.dumps(HOSTILE_DIAGRAMS)))
    assert found["alerts"] == 0
    assert found["answered"] == len(HOSTILE_DIAGRAMS)
    own = (f"{server.url}/static/", f"{server.url}/diagram/")
    assert [url for url in asked if not url.startswith(own) or url.endswith("/x")] == []
    frame = [one for one in page.frames if one.url.endswith("/diagram/")][-1]
    assert frame.evaluate("[...document.scripts].length") == 1
    assert page.evaluate("window.pwned ?? document.querySelector('#rows script') ?? 0") == 0


DRAW_ALL = """
async (texts) => {
  // A frame as those of the page, which takes one away that could not draw.
  const frame = document.querySelector(".drawn iframe").cloneNode();
  const isReady = new Promise((done) => {
    addEventListener("message", ({ source }) => { if (source === frame.contentWindow) done(); });
  });
  document.body.append(frame);
  await isReady;
  const found = { answered: 0, alerts: 0, late: [] };
  window.alert = () => { found.alerts += 1; };
  for (const text of texts) {
    const answer = new Promise((done) => {
      addEventListener("message", ({ source, data }) => {
        if (source === frame.contentWindow && ("height" in data || data.failed)) done(data);
      });
    });
    frame.contentWindow.postMessage({ text, dark: false }, "*");
    const data = await Promise.race([answer, new Promise((done) => setTimeout(done, 15000))]);
    if (data) found.answered += 1;
    else found.late.push(text);
  }
  return found;
}
"""
