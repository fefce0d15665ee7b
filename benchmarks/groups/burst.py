"""Processor time of the server for an answer that comes as fast as it can."""

import asyncio
from time import sleep
from uuid import UUID

from benchmarks.bench import Bench
from benchmarks.figures import Figure, median
from benchmarks.machine import cpu_seconds
from benchmarks.pages import PageSocket, delivered_text
from benchmarks.processes import Server, running_server, running_wire

TOKENS = 2000
TOKEN_CHARS = 7
RUNS, QUICK_RUNS = 5, 2
SETTLE = 1.5
"""Seconds after an answer that still count as its cost."""

BURST = f"[[wire: words={TOKENS} chunk={TOKEN_CHARS}]]"
PACED = f"[[wire: words={TOKENS} chunk={TOKEN_CHARS} rate=100]]"


def measure(bench: Bench) -> list[Figure]:
    with running_wire() as wire, running_server(bench.data_dir, settings=wire.settings) as server:
        cookie = server.sign_in()
        asyncio.run(_answer(server, cookie, bench.new_session().uuid, BURST))
        wire.take_answers()

        def cost(text: str) -> float:
            began = cpu_seconds(server.pid)
            told = asyncio.run(_answer(server, cookie, bench.new_session().uuid, text))
            sleep(SETTLE)
            used = cpu_seconds(server.pid) - began
            [answer] = wire.take_answers()
            assert told == answer.text()
            return 1000 * used / len(answer.pieces())

        bursts = [cost(BURST) for _ in range(QUICK_RUNS if bench.is_quick else RUNS)]
        paced = [] if bench.is_quick else [cost(PACED)]
    return [
        Figure(name="burst, per 1,000 tokens", value=median(bursts), unit="CPU-s", at_most=0.3),
        *(Figure(name="at 100 tokens/s", value=value, unit="CPU-s") for value in paced),
    ]


async def _answer(server: Server, cookie: str, session: UUID, text: str) -> str:
    page = PageSocket(port=server.port, cookie=cookie, session=session)
    await page.open()
    await page.send(text)
    await page.wait_until_idle(seconds=120)
    await page.close()
    return delivered_text(page.drafts())
