"""Few and many simultaneous answers through one server process.

Each of N sessions has its own page. All messages are sent within a second, and the answers arrive
at 30 words a second for some seconds. The age of a word is the time from when the provider sends it
to its arrival at the page. The limit is a client that reads the provider's streams directly. For
the processor time the limit is the provider's SDK.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from uuid import UUID

from benchmarks.bench import Bench
from benchmarks.figures import Figure, percentile
from benchmarks.floor import DirectReader
from benchmarks.machine import cpu_seconds, resident_megabytes
from benchmarks.pages import PageSocket, ages_of, delivered_text
from benchmarks.processes import Server, Wire, running_server, running_wire
from benchmarks.sdk import Sdk, running_sdk
from benchmarks.wire import SentAnswer
from conversations.models import Session, Turn

COUNTS, QUICK_COUNTS = (1, 20, 50, 100, 200, 400), (1, 20)
CHUNKS_PER_SECOND = 30
WORDS, QUICK_WORDS = 312, 120
"""Words of the text. The figures count pieces of seven characters, each 1.4 of these words."""

SENDING_SECONDS = 1.0
"""Time in which all messages are sent."""

ANSWER_TIMEOUT_SECONDS = 120.0
MAX_UNCOALESCED_STREAMS = 20
"""With more answers deltas are combined, and the processor time has no goal."""

MAX_FIRST_WORD_P95_MS = {100: 25, 200: 60}
MAX_AGE_MS = {
    1: (3, 10),
    20: (3, 10),
    50: (3, 10),
    100: (None, 30),
    200: (None, 60),
    400: (None, 200),
}
"""Number of answers → goals for the median and the p95 of the age of a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayed:
    """The results of N answers.

    ``whole`` counts the answers that are complete at the page and, with their message, in the
    archive. ``size`` is the number of bytes received from the server, or from the provider.
    """

    ages: list[float]
    first_words: list[float]
    words: int
    size: int
    whole: int = 0
    cpu: float = 0.0
    memory: float = 0.0
    errors: int = 0


def measure(bench: Bench) -> list[Figure]:
    words = QUICK_WORDS if bench.is_quick else WORDS
    figures: list[Figure] = []
    settings = {"LOOM_MAX_SOCKETS": "1000"}
    with (
        running_wire() as wire,
        running_server(bench.data_dir, settings=wire.settings | settings) as server,
        running_sdk(wire) as sdk,
    ):
        cookie = server.sign_in()
        asyncio.run(_converse(server, cookie, bench.new_sessions(2), QUICK_WORDS))
        wire.take_answers()
        for count in QUICK_COUNTS if bench.is_quick else COUNTS:
            relayed = _relay(bench, server, wire, cookie, count, words)
            limit = _read_directly(wire, count, words)
            alone = (
                _read_by_sdk(sdk, wire, count, words) if count <= MAX_UNCOALESCED_STREAMS else None
            )
            figures += _figures(count, relayed, limit, alone)
    return figures


def _figures(count: int, relayed: Relayed, limit: Relayed, alone: float | None) -> Iterator[Figure]:
    at = f"{count} answer{'s' if count > 1 else ''}:"
    yield Figure(
        name=f"{at} whole at the page and in the archive", value=relayed.whole, at_least=count
    )
    yield Figure(name=f"{at} errors in the log", value=relayed.errors, at_most=0)
    for name, share, goal in (
        ("median", 0.5, None),
        ("p95", 0.95, MAX_FIRST_WORD_P95_MS.get(count)),
    ):
        if count > 1:
            yield Figure(
                name=f"{at} added to the first word, {name}",
                value=1000 * percentile(relayed.first_words, share),
                unit="ms",
                at_most=goal,
                limit=1000 * percentile(limit.first_words, share),
            )
    for name, share, goal in zip(("median", "p95"), (0.5, 0.95), MAX_AGE_MS[count], strict=True):
        yield Figure(
            name=f"{at} age of a word, {name}",
            value=1000 * percentile(relayed.ages, share),
            unit="ms",
            at_most=goal,
            limit=1000 * percentile(limit.ages, share),
        )
    yield Figure(
        name=f"{at} bytes to the page per word",
        value=relayed.size / relayed.words,
        at_most=150,
        limit=limit.size / limit.words,
    )
    yield Figure(
        name=f"{at} processor time of 1,000 words",
        value=1000 * relayed.cpu / relayed.words,
        unit="CPU-s",
        at_most=0.2 if count <= MAX_UNCOALESCED_STREAMS else None,
        limit=alone,
    )
    yield Figure(name=f"{at} memory of the server then", value=relayed.memory, unit="MB")


def _relay(
    bench: Bench, server: Server, wire: Wire, cookie: str, count: int, words: int
) -> Relayed:
    sessions = bench.new_sessions(count)
    known, began = len(server.problems()), cpu_seconds(server.pid)
    pages = asyncio.run(_converse(server, cookie, sessions, words))
    cpu, memory = cpu_seconds(server.pid) - began, resident_megabytes(server.pid)
    answers = {answer.mark: answer for answer in wire.take_answers()}
    ages: list[float] = []
    first_words: list[float] = []
    whole = 0
    for number, (page, sent) in enumerate(pages):
        answer, drafts = answers[str(number)], page.drafts()
        told, asked = answer.text(), _text_of(number, words)
        kept = _archived(page.session) == [("user", asked), ("assistant", told)]
        whole += kept and delivered_text(drafts) == told
        ages += ages_of(drafts, answer)
        first_words.append(_added(sent, drafts[0][0], answer))
    return Relayed(
        ages=ages,
        first_words=first_words,
        words=sum(len(answer.pieces()) for answer in answers.values()),
        size=sum(len(text.encode()) for page, _ in pages for _, text in page.received),
        whole=whole,
        cpu=cpu,
        memory=memory,
        errors=len(server.problems()) - known,
    )


def _added(sent: int, first: int, answer: SentAnswer) -> float:
    return ((first - sent) - (answer.pieces()[0].at - answer.arrived)) / 1e9


def _text_of(number: int, words: int) -> str:
    return f"[[wire: words={words} chunk=7 rate={CHUNKS_PER_SECOND}]] #{number}#"


async def _converse(
    server: Server, cookie: str, sessions: Sequence[UUID], words: int
) -> list[tuple[PageSocket, int]]:
    """Return the pages with the times at which their messages were sent.

    ``received`` of a page contains only the frames since it sent its message.
    """
    pages = [PageSocket(port=server.port, cookie=cookie, session=uuid) for uuid in sessions]
    for page in pages:
        await page.open()
        page.received.clear()
    sent = await asyncio.gather(
        *(_ask(page, number, len(pages), words) for number, page in enumerate(pages))
    )
    await asyncio.gather(*(page.close() for page in pages))
    return list(zip(pages, sent, strict=True))


async def _ask(page: PageSocket, number: int, count: int, words: int) -> int:
    await asyncio.sleep(SENDING_SECONDS * number / count)
    sent = monotonic_ns()
    await page.send(_text_of(number, words))
    await page.wait_until_idle(seconds=ANSWER_TIMEOUT_SECONDS)
    return sent


def _archived(session: UUID) -> list[tuple[str, str]]:
    pk = Session.objects.values_list("pk", flat=True).get(uuid=session)
    turns = Turn.objects.filter(session=pk).order_by("number")
    return list(turns.values_list("role", "content"))


def _read_directly(wire: Wire, count: int, words: int) -> Relayed:
    readers = asyncio.run(_ask_directly(wire, count, words))
    answers = {answer.mark: answer for answer in wire.take_answers()}
    ages: list[float] = []
    first_words: list[float] = []
    for number, (reader, sent) in enumerate(readers):
        answer, arrivals = answers[str(number)], reader.arrivals()
        first_words.append(_added(sent, arrivals[0], answer))
        pieces = answer.pieces()
        ages += [(at - piece.at) / 1e9 for at, piece in zip(arrivals, pieces, strict=True)]
    size = sum(len(chunk) for reader, _ in readers for _, chunk in reader.received)
    return Relayed(ages=ages, first_words=first_words, words=len(ages), size=size)


async def _ask_directly(wire: Wire, count: int, words: int) -> list[tuple[DirectReader, int]]:
    readers = [DirectReader(port=wire.port) for _ in range(count)]
    for reader in readers:
        await reader.open()

    async def ask(number: int, reader: DirectReader) -> int:
        await asyncio.sleep(SENDING_SECONDS * number / count)
        return await reader.ask(_text_of(number, words))

    sent = await asyncio.gather(*(ask(number, reader) for number, reader in enumerate(readers)))
    for reader in readers:
        reader.close()
    return list(zip(readers, sent, strict=True))


def _read_by_sdk(sdk: Sdk, wire: Wire, count: int, words: int) -> float:
    """Return the SDK's processor time per 1,000 words."""
    used = sdk.cpu_seconds([_text_of(number, words) for number in range(count)])
    return 1000 * used / sum(len(answer.pieces()) for answer in wire.take_answers())
