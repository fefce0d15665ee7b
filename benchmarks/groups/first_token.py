"""The time that the server adds to the first word, with one answer at a time.

Added = (first word at the page − sending of the message) − (first word of the provider − arrival
of the request), so the provider's own time is excluded. The limit is a client that reads the
provider's stream directly.
"""

import asyncio
from time import monotonic_ns
from uuid import UUID

from benchmarks.bench import Bench
from benchmarks.figures import Figure, percentile
from benchmarks.floor import DirectReader
from benchmarks.pages import PageSocket
from benchmarks.processes import Wire, running_server, running_wire

MESSAGES, QUICK_MESSAGES = 60, 15
MESSAGES_PER_SESSION = 10
WARM_UP_MESSAGES = 3
PAUSE_SECONDS = 0.05
"""Pause between two messages, so that the end of an answer does not affect the next message."""

TEXT = "[[wire: words=30 rate=200]] Say something short, please."


def measure(bench: Bench) -> list[Figure]:
    count = WARM_UP_MESSAGES + (QUICK_MESSAGES if bench.is_quick else MESSAGES)
    sessions = bench.new_sessions(-(-count // MESSAGES_PER_SESSION))
    with running_wire() as wire, running_server(bench.data_dir, settings=wire.settings) as server:
        cookie = server.sign_in()
        sent = asyncio.run(converse(server.port, cookie, sessions, count))
        times = added(sent, wire)[WARM_UP_MESSAGES:]
        limits = added(asyncio.run(_read_directly(wire.port, count)), wire)[WARM_UP_MESSAGES:]
    return [
        Figure(
            name=f"added to the first word, {name}",
            value=1000 * percentile(times, share),
            unit="ms",
            at_most=goal,
            limit=1000 * percentile(limits, share),
        )
        for name, share, goal in (("median", 0.5, 4), ("p95", 0.95, 8))
    ]


async def converse(
    port: int, cookie: str, sessions: list[UUID], count: int
) -> list[tuple[int, int]]:
    """Return for each message the time of sending and the time of the first word."""
    moments: list[tuple[int, int]] = []
    for session in sessions:
        page = PageSocket(port=port, cookie=cookie, session=session)
        await page.open()
        for _ in range(min(MESSAGES_PER_SESSION, count - len(moments))):
            await asyncio.sleep(PAUSE_SECONDS)
            known, sent = len(page.received), monotonic_ns()
            await page.send(TEXT)
            await page.wait_until_idle(seconds=30)
            moments.append((sent, page.drafts(since=known)[0][0]))
        await page.close()
    return moments


async def _read_directly(port: int, count: int) -> list[tuple[int, int]]:
    reader = DirectReader(port=port)
    await reader.open()
    moments = []
    for _ in range(count):
        await asyncio.sleep(PAUSE_SECONDS)
        asked = await reader.ask(TEXT)
        moments.append((asked, reader.arrivals()[0]))
    reader.close()
    return moments


def added(moments: list[tuple[int, int]], wire: Wire) -> list[float]:
    """Return the seconds that were added to the first word of each message."""
    answers = wire.take_answers()
    return [
        ((first - sent) - (answer.pieces()[0].at - answer.arrived)) / 1e9
        for (sent, first), answer in zip(moments, answers, strict=True)
    ]
