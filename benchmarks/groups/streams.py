"""Many answers at once through one server process.

Each of N sessions has a page of its own and an answer of about ten seconds at 30
pieces a second. The age of a piece is the time from its leaving the provider to
its arrival at the page; the floor is the same without a server between.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from benchmarks.bench import Bench
from benchmarks.figures import Figure, percentile
from benchmarks.floor import DirectReader
from benchmarks.machine import cpu_seconds, resident_megabytes
from benchmarks.pages import PageSocket, ages_of, delivered_text
from benchmarks.processes import Server, Wire, running_server, running_wire
from benchmarks.wire import SentAnswer
from conversations.models import Session, Turn

RATE = 30
WORDS, QUICK_WORDS = 370, 120
SPREAD = 1.0
"""Seconds over which the answers begin."""

IN_TIME = 0.15
LONGEST = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayed:
    """What became of N answers. ``complete``: those that the page got whole;
    ``archived``: those whose message and answer are in the archive whole."""

    ages: list[float]
    complete: int
    archived: int
    cpu: float
    memory: float
    errors: int


def measure(bench: Bench) -> list[Figure]:
    words = QUICK_WORDS if bench.is_quick else WORDS
    figures: list[Figure] = []
    for count in (100, 200):
        figures += _figures(count, _relay(bench, count, words), _read_directly(count, words))
    return figures


def _figures(count: int, relayed: Relayed, floor: Sequence[float]) -> list[Figure]:
    ages, at = relayed.ages, f"{count} answers:"
    in_time = 100 * sum(age <= IN_TIME for age in ages) / max(1, len(ages))
    is_first = count == 100
    return [
        Figure(name=f"{at} complete at the page", value=relayed.complete, at_least=count),
        Figure(name=f"{at} whole in the archive", value=relayed.archived, at_least=count),
        Figure(
            name=f"{at} within {1000 * IN_TIME:.0f} ms",
            value=in_time,
            unit="%",
            at_least=95 if is_first else None,
        ),
        Figure(name=f"{at} age, median", value=1000 * percentile(ages, 0.5), unit="ms"),
        Figure(
            name=f"{at} age, p95",
            value=1000 * percentile(ages, 0.95),
            unit="ms",
            at_most=None if is_first else 1000,
        ),
        Figure(name=f"{at} age, p99", value=1000 * percentile(ages, 0.99), unit="ms"),
        Figure(name=f"{at} processor time, server", value=relayed.cpu, unit="s"),
        Figure(name=f"{at} memory of the server then", value=relayed.memory, unit="MB"),
        Figure(name=f"{at} errors in the log", value=relayed.errors, at_most=0),
        Figure(name=f"{at} floor, p95", value=1000 * percentile(floor, 0.95), unit="ms"),
    ]


def _relay(bench: Bench, count: int, words: int) -> Relayed:
    sessions = bench.new_sessions(count)
    with (
        running_wire() as wire,
        running_server(
            bench.data_dir, settings=wire.settings | {"LOOM_MAX_SOCKETS": "1000"}
        ) as server,
    ):
        known = len(server.problems())
        cookie = server.sign_in()
        asyncio.run(_converse(server, cookie, bench.new_sessions(1), QUICK_WORDS))
        wire.take_answers()
        began = cpu_seconds(server.pid)
        pages = asyncio.run(_converse(server, cookie, sessions, words))
        cpu, memory = cpu_seconds(server.pid) - began, resident_megabytes(server.pid)
        answers = {answer.mark: answer for answer in wire.take_answers()}
        errors = len(server.problems()) - known
    complete, archived, ages = _judge(pages, answers, words)
    return Relayed(
        ages=ages, complete=complete, archived=archived, cpu=cpu, memory=memory, errors=errors
    )


def _text_of(number: int, words: int) -> str:
    return f"[[wire: words={words} chunk=7 rate={RATE}]] #{number}#"


async def _converse(
    server: Server, cookie: str, sessions: Sequence[UUID], words: int
) -> list[PageSocket]:
    pages = [PageSocket(port=server.port, cookie=cookie, session=uuid) for uuid in sessions]
    for page in pages:
        await page.open()
    await asyncio.gather(
        *(_ask(page, number, len(pages), words) for number, page in enumerate(pages))
    )
    await asyncio.gather(*(page.close() for page in pages))
    return pages


async def _ask(page: PageSocket, number: int, count: int, words: int) -> None:
    await asyncio.sleep(SPREAD * number / count)
    await page.send(_text_of(number, words))
    await page.wait_until_idle(seconds=LONGEST)


def _judge(
    pages: Sequence[PageSocket], answers: dict[str, SentAnswer], words: int
) -> tuple[int, int, list[float]]:
    """How many are complete at the page and whole in the archive, and all ages."""
    ages: list[float] = []
    complete = archived = 0
    for number, page in enumerate(pages):
        asked = _text_of(number, words)
        answer, drafts = answers[str(number)], page.drafts()
        told = answer.text()
        complete += delivered_text(drafts) == told
        archived += _archived(page.session) == [("user", asked), ("assistant", told)]
        ages += ages_of(drafts, answer)
    return complete, archived, ages


def _archived(session: UUID) -> list[tuple[str, str]]:
    pk = Session.objects.values_list("pk", flat=True).get(uuid=session)
    turns = Turn.objects.filter(session=pk).order_by("number")
    return list(turns.values_list("role", "content"))


def _read_directly(count: int, words: int) -> list[float]:
    with running_wire() as wire:
        readers = asyncio.run(_ask_directly(wire, count, words))
        answers = {answer.mark: answer for answer in wire.take_answers()}
    return [
        (at - piece.at) / 1e9
        for number, reader in enumerate(readers)
        for at, piece in zip(reader.arrivals(), answers[str(number)].pieces(), strict=True)
    ]


async def _ask_directly(wire: Wire, count: int, words: int) -> list[DirectReader]:
    readers = [DirectReader(port=wire.port) for _ in range(count)]
    for reader in readers:
        await reader.open()

    async def ask(number: int, reader: DirectReader) -> None:
        await asyncio.sleep(SPREAD * number / count)
        await reader.ask(_text_of(number, words))

    await asyncio.gather(*(ask(number, reader) for number, reader in enumerate(readers)))
    for reader in readers:
        reader.close()
    return readers
