"""The time for which a hostile folder and hostile messages hold up another person.

The workspace of one session contains forty files that attack its readers, and the answers quote
texts that attack the renderer. Meanwhile another person keeps requesting a page that costs nothing
and sending pings over a socket. The longest wait is the longest pause of the event loop. It is
compared with a harmless folder and harmless texts in the same run.
"""

import asyncio
import json
import shutil
import threading
from pathlib import Path
from time import monotonic
from uuid import UUID

from websockets.sync.client import connect

from benchmarks.bench import WORKSPACE, Bench
from benchmarks.figures import Figure, percentile
from benchmarks.pages import PageReader, PageSocket
from benchmarks.processes import running_server, running_wire
from conversations.archive.workspaces import get_workspace
from tests.folder.test_hostile_files import make_forty

TEXT_CHARS = 30_000
MAX_RATIO = 5.0
"""Ratio of the pause with a hostile folder to the pause with a harmless one."""

HOSTILE_TEXTS = ["*_", "\\", "![", "[", "- a\n", "|a|b|\n|-|-|\n", "***a"]
HARMLESS_TEXTS = ["The quick brown fox jumps over the **lazy** dog.\n\n"] * len(HOSTILE_TEXTS)


def measure(bench: Bench) -> list[Figure]:
    files = make_forty()
    harmless = _pauses(bench, dict.fromkeys(files, b"Prune the roses.\n"), HARMLESS_TEXTS)
    hostile = _pauses(bench, files, HOSTILE_TEXTS)
    figures = []
    for way, other, waits in zip(("page", "socket"), harmless, hostile, strict=True):
        figures += [
            Figure(name=f"longest {way}, harmless", value=1000 * max(other), unit="ms"),
            Figure(name=f"longest {way}, hostile", value=1000 * max(waits), unit="ms"),
            Figure(
                name=f"{way}, hostile by harmless",
                value=max(waits) / max(other),
                at_most=MAX_RATIO,
            ),
            Figure(name=f"p99 {way}, harmless", value=1000 * percentile(other, 0.99), unit="ms"),
            Figure(name=f"p99 {way}, hostile", value=1000 * percentile(waits, 0.99), unit="ms"),
        ]
    return figures


def _pauses(
    bench: Bench, files: dict[str, bytes], texts: list[str]
) -> tuple[list[float], list[float]]:
    """Return the seconds of each request and of each ping of the other person."""
    root = Path(get_workspace(WORKSPACE).root)
    before = root.with_name(f"{root.name}-before")
    shutil.copytree(root, before)
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    try:
        with running_wire() as wire, running_server(bench.data_dir, settings=wire.settings) as at:
            cookie = at.sign_in()
            pages: list[float] = []
            pings: list[float] = []
            is_over = threading.Event()
            line, *sessions = bench.new_sessions(1 + len(texts))
            others = (
                threading.Thread(target=_ask_again, args=(at.port, cookie, pages, is_over)),
                threading.Thread(target=_ping_again, args=(at.port, cookie, line, pings, is_over)),
            )
            for other in others:
                other.start()
            try:
                asyncio.run(_send_all(at.port, cookie, sessions, texts))
            finally:
                is_over.set()
                for other in others:
                    other.join()
            return pages, pings
    finally:
        shutil.rmtree(root)
        before.rename(root)


def _ask_again(port: int, cookie: str, waits: list[float], is_over: threading.Event) -> None:
    page = PageReader(port=port, cookie=cookie)
    while not is_over.wait(0.01):
        waits.append(page.read("/healthz"))
    page.close()


def _ping_again(
    port: int, cookie: str, session: UUID, waits: list[float], is_over: threading.Event
) -> None:
    at = f"127.0.0.1:{port}"
    headers = {"Cookie": cookie, "Origin": f"http://{at}"}
    with connect(f"ws://{at}/ws/s/{session}/", additional_headers=headers) as socket:
        while not is_over.wait(0.01):
            began = monotonic()
            socket.send('{"type": "ping"}')
            while json.loads(socket.recv(timeout=60))["type"] != "pong":
                pass
            waits.append(monotonic() - began)


async def _send_all(port: int, cookie: str, sessions: list[UUID], texts: list[str]) -> None:
    """Send each text as a message. The answer repeats it in pieces, as a model does."""
    for session, piece in zip(sessions, texts, strict=True):
        page = PageSocket(port=port, cookie=cookie, session=session)
        await page.open()
        text = json.dumps((piece * TEXT_CHARS)[:TEXT_CHARS])
        await page.send(f"[[wire: text={text} chunk=1000 rate=20]]")
        await page.wait_until_idle(seconds=120)
        await page.close()
