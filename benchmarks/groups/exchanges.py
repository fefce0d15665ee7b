"""The five hundredth exchange of a session compared with the first ones, without a restart.

The figures are the times that the server adds to the provider's time. The provider reads a longer
request each time.
"""

import asyncio
from time import perf_counter
from uuid import UUID

from benchmarks.bench import Bench
from benchmarks.figures import Figure, median
from benchmarks.machine import resident_megabytes
from benchmarks.pages import PageSocket
from benchmarks.processes import running_server, running_wire

EXCHANGES, QUICK_EXCHANGES = 500, 60
COMPARED_EXCHANGES = 25
WARM_UP_EXCHANGES = 5

TEXT = "[[wire: words=50]] What else is there to say about this?"


def measure(bench: Bench) -> list[Figure]:
    count = QUICK_EXCHANGES if bench.is_quick else EXCHANGES
    with running_wire() as wire, running_server(bench.data_dir, settings=wire.settings) as server:
        cookie = server.sign_in()
        [warm, session] = bench.new_sessions(2)
        asyncio.run(_converse(server.port, cookie, warm, WARM_UP_EXCHANGES))
        wire.take_answers()
        before = resident_megabytes(server.pid)
        times = asyncio.run(_converse(server.port, cookie, session, count))
        grown = resident_megabytes(server.pid) - before
        answers = [
            (answer.pieces()[-1].at - answer.arrived) / 1e9 for answer in wire.take_answers()
        ]
    added = [taken - answer for taken, answer in zip(times, answers, strict=True)]
    first, last = median(added[:COMPARED_EXCHANGES]), median(added[-COMPARED_EXCHANGES:])
    return [
        Figure(
            name=f"added to exchange 1 to {COMPARED_EXCHANGES} of a session",
            value=1000 * first,
            unit="ms",
        ),
        Figure(
            name=f"added to exchange {count} against the first, median of {COMPARED_EXCHANGES}",
            value=last / first,
            at_most=1.2,
        ),
        Figure(name=f"memory that {count} exchanges took", value=grown, unit="MB"),
    ]


async def _converse(port: int, cookie: str, session: UUID, count: int) -> list[float]:
    """Return the seconds from each message to the end of its answer."""
    page = PageSocket(port=port, cookie=cookie, session=session)
    await page.open()
    times = []
    for _ in range(count):
        began = perf_counter()
        await page.send(TEXT)
        await page.wait_until_idle(seconds=30)
        times.append(perf_counter() - began)
    await page.close()
    return times
