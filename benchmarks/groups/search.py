"""Searches in one long session of a very large archive, and the cost of the index.

Words follow Zipf's law, so there are rare, middling and very common words. Each search has
different words. The first searches, for which nothing is cached, count too.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import batched
from random import Random
from time import perf_counter

from django.db import connection

from benchmarks.bench import Bench
from benchmarks.figures import Figure, median, percentile
from benchmarks.vocabulary import make_texts, word
from conversations.archive.append import NewEvent, append, prepare_event
from conversations.domain.events import AssistantText
from conversations.domain.turns import NewTurn
from conversations.models import Session
from conversations.runtime.database import Readers, Writer
from conversations.runtime.watch import PAUSE_SECONDS, TURNS_AT_ONCE
from conversations.search.find import search_session
from conversations.search.find_everywhere import search_sessions
from conversations.search.indexing import (
    index_session,
    merge_index,
    prepare_batch,
    read_progress,
    store_batch,
)
from conversations.search.query import SearchQuery, parse_query

SESSIONS, TURNS = 20, 50_000
QUICK_SESSIONS, QUICK_TURNS = 4, 5_000
SEARCHES, QUICK_SEARCHES = 200, 60
APPENDS, QUICK_APPENDS = 1500, 300
APPEND_PAUSE_SECONDS = 0.01

WORDS_PER_TURN, BATCH_TURNS = (20, 140), 500
MAX_MS, MAX_APPEND_MS = 50, 20


def measure(bench: Bench) -> list[Figure]:
    logging.getLogger("conversations").setLevel(logging.WARNING)
    count, turns = (QUICK_SESSIONS, QUICK_TURNS) if bench.is_quick else (SESSIONS, TURNS)
    searches = QUICK_SEARCHES if bench.is_quick else SEARCHES
    sessions = [bench.new_session() for _ in range(count)]
    began = perf_counter()
    for number, session in enumerate(sessions):
        _write(session, turns=turns, seed=number)
    written = perf_counter()
    for session in sessions:
        index_session(session.pk)
    while merge_index(pages=1000):
        pass
    indexed = perf_counter()
    return [
        Figure(name="turns in the archive", value=count * turns),
        Figure(name="turns in the session", value=turns),
        Figure(name="time to write them", value=written - began, unit="s"),
        Figure(name="time to index them", value=indexed - written, unit="s"),
        Figure(name="size of the database", value=_megabytes(), unit="MB"),
        *_searching(sessions[count // 2], searches),
        *_searching_everywhere(sessions, searches // 4),
        *asyncio.run(_appending(sessions, QUICK_APPENDS if bench.is_quick else APPENDS)),
    ]


def _write(session: Session, *, turns: int, seed: int) -> None:
    start, texts = datetime(2026, 1, 1, tzinfo=UTC), make_texts(Random(seed), words=WORDS_PER_TURN)
    for numbers in batched(range(turns), BATCH_TURNS, strict=False):
        new = [
            NewTurn(
                role=("user", "assistant")[number % 2],
                content=next(texts),
                created_at=start + timedelta(minutes=number),
            )
            for number in numbers
        ]
        append(session.pk, session_uuid=session.uuid, turns=new)


def _megabytes() -> float:
    with connection.cursor() as cursor:
        cursor.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        [(size,)] = cursor.fetchall()
    return float(size / 1_000_000)


def make_queries(random: Random) -> dict[str, Callable[[], str]]:
    """Return a function for each kind of query. It makes a query that is rarely repeated."""

    def one(low: int, high: int) -> str:
        return word(random.randint(low, high))

    return {
        "a rare word": lambda: one(20_000, 59_000),
        "a middling word": lambda: one(100, 1000),
        "a very common word": lambda: one(0, 5),
        "three common words": lambda: f"{one(0, 3)} {one(4, 8)} {one(9, 20)}",
        "a question": lambda: " ".join(
            (one(0, 5), one(5, 50), one(50, 500), one(500, 5000), one(5000, 50_000), one(0, 90))
        ),
        "a phrase": lambda: f'"{one(0, 9)} {one(0, 20)}"',
    }


def _searching(session: Session, searches: int) -> list[Figure]:
    figures = []
    for name, make in make_queries(Random(5)).items():
        queries = [make() for _ in range(searches)]
        times = [_timed(lambda q: search_session(session.pk, q, limit=20), q) for q in queries]
        figures += [
            Figure(name=f"{name}, median", value=median(times), unit="ms"),
            Figure(name=f"{name}, p95", value=percentile(times, 0.95), unit="ms", at_most=MAX_MS),
        ]
    make = make_queries(Random(6))["three common words"]
    queries = [make() for _ in range(searches)]
    times = [_timed(lambda q: search_session(session.pk, q, order="newest"), q) for q in queries]
    return [
        *figures,
        Figure(name="in order of time, p95", value=percentile(times, 0.95), unit="ms"),
    ]


def _searching_everywhere(sessions: list[Session], searches: int) -> list[Figure]:
    figures = []
    few = Session.objects.filter(pk__in=[session.pk for session in sessions[::7]])
    for place, found in (("everywhere", Session.objects.all()), ("a few sessions", few)):
        for order in ("best", "newest"):
            make = make_queries(Random(7))["a question" if order == "best" else "a middling word"]
            find = partial(search_sessions, found, order=order)
            times = [_timed(find, make()) for _ in range(searches)]
            name = f"{place}, {order} first, p95"
            figures.append(Figure(name=name, value=percentile(times, 0.95), unit="ms"))
    return figures


def _timed(work: Callable[[SearchQuery], object], query: str) -> float:
    began = perf_counter()
    work(parse_query(query))
    return 1000 * (perf_counter() - began)


async def _appending(sessions: list[Session], appends: int) -> list[Figure]:
    """Measure appends as a server does them, first alone and then while its indexer works."""
    writer, readers = Writer(), Readers()
    try:
        alone = await _append_all(writer, sessions[0], appends)
        indexing = asyncio.create_task(_keep_indexed(writer, readers, sessions[0]))
        with_index = await _append_all(writer, sessions[0], appends)
        indexing.cancel()
        await asyncio.gather(indexing, return_exceptions=True)
    finally:
        await asyncio.to_thread(writer.close)
        await asyncio.to_thread(readers.close)
    return [
        Figure(name="append, p99, nothing indexed", value=percentile(alone, 0.99), unit="ms"),
        Figure(name="append, median, while indexing", value=median(with_index), unit="ms"),
        Figure(
            name="append, p99, while indexing",
            value=percentile(with_index, 0.99),
            unit="ms",
            at_most=MAX_APPEND_MS,
        ),
    ]


async def _append_all(writer: Writer, session: Session, appends: int) -> list[float]:
    texts, times = make_texts(Random(8), words=WORDS_PER_TURN), []
    for _ in range(appends):
        text = next(texts)
        event = prepare_event(
            NewEvent(payload=AssistantText(text=text), new=0), session_uuid=session.uuid
        )
        turn = NewTurn(role="assistant", content=text)
        began = perf_counter()
        await writer.write(
            append, session.pk, session_uuid=session.uuid, turns=[turn], events=[event]
        )
        times.append(1000 * (perf_counter() - began))
        await asyncio.sleep(APPEND_PAUSE_SECONDS)
    return times


async def _keep_indexed(writer: Writer, readers: Readers, session: Session) -> None:
    """Run the server's indexer without its idle pauses, so that it always works."""
    while True:
        progress = await readers.read(read_progress, session.pk)
        assert progress is not None
        if progress.waiting:
            batch = await readers.read(prepare_batch, progress, size=TURNS_AT_ONCE)
            await writer.write(store_batch, batch)
        else:
            await writer.write(merge_index)
        await asyncio.sleep(PAUSE_SECONDS)
