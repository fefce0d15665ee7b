"""Processor time of the server for one answer that arrives in a burst or word by word.

The limit is the provider's SDK, which reads the same stream and does nothing with it.
"""

import asyncio
from time import sleep
from uuid import UUID

from benchmarks.bench import Bench
from benchmarks.figures import Figure, median
from benchmarks.machine import cpu_seconds
from benchmarks.pages import PageSocket, delivered_text
from benchmarks.processes import Server, running_server, running_wire
from benchmarks.sdk import running_sdk

SETTLE_SECONDS = 1.5
"""Time after an answer that still counts as its cost."""

BURST = "[[wire: words=2600 chunk=7]]"
PACED = "[[wire: words=1300 chunk=7 rate=100]]"


def measure(bench: Bench) -> list[Figure]:
    with (
        running_wire() as wire,
        running_server(bench.data_dir, settings=wire.settings) as server,
        running_sdk(wire) as sdk,
    ):
        cookie = server.sign_in()
        asyncio.run(_answer(server, cookie, bench.new_session().uuid, BURST))
        wire.take_answers()

        def cost(text: str) -> tuple[float, float]:
            """Return the processor time per 1,000 words of the server and of the SDK."""
            began = cpu_seconds(server.pid)
            told = asyncio.run(_answer(server, cookie, bench.new_session().uuid, text))
            sleep(SETTLE_SECONDS)
            used = cpu_seconds(server.pid) - began
            alone = sdk.cpu_seconds([text])
            answer, again = wire.take_answers()
            assert told == answer.text() == again.text()
            return 1000 * used / len(answer.pieces()), 1000 * alone / len(answer.pieces())

        bursts = [cost(BURST) for _ in range(1 if bench.is_quick else 3)]
        paced = cost(PACED)
    return [
        Figure(
            name="processor time of 1,000 words, one answer as fast as it comes",
            value=median([used for used, _ in bursts]),
            unit="CPU-s",
            at_most=0.3,
            limit=median([alone for _, alone in bursts]),
        ),
        Figure(
            name="processor time of 1,000 words, one answer of 100 words a second",
            value=paced[0],
            unit="CPU-s",
            at_most=0.2,
            limit=paced[1],
        ),
    ]


async def _answer(server: Server, cookie: str, session: UUID, text: str) -> str:
    page = PageSocket(port=server.port, cookie=cookie, session=session)
    await page.open()
    await page.send(text)
    await page.wait_until_idle(seconds=120)
    await page.close()
    return delivered_text(page.drafts())
