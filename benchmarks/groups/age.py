"""The cost of age: a very long session compared with a short one.

The sessions are measured alternately in one run, so that a busy machine slows both alike. The
limit of a page is a view that only reads the same number of pieces of the same HTML from a table.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from time import monotonic_ns, perf_counter, sleep

from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from benchmarks.bare import reading_bare, write_pieces
from benchmarks.bench import Bench
from benchmarks.figures import Figure, median, percentile
from benchmarks.groups.start import IDLE_SECONDS
from benchmarks.history import (
    ROWS_PER_EXCHANGE,
    TURNS_PER_EXCHANGE,
    make_answer,
    write_history,
)
from benchmarks.pages import PageReader, PageSocket
from benchmarks.processes import Server, Wire, running_server, running_wire
from conversations.archive.append import NewEvent, append, prepare_event
from conversations.archive.session_state import read_state_text, rebuild_state_text
from conversations.archive.sessions import get_session
from conversations.archive.transcript import read_page
from conversations.domain.events import AssistantText
from conversations.domain.keyset import parse_cursor
from conversations.domain.turns import NewTurn
from conversations.models import Session
from conversations.search.indexing import index_waiting

OLD_TURNS, QUICK_OLD_TURNS, YOUNG_TURNS = 100_000, 20_000, 300
MAX_RATIO = 1.3
"""Ratio of old to young up to which both count as equal."""

OPENED_ROWS, OLDER_ROWS = 250, 200
ROUNDS, QUICK_ROUNDS = 80, 30
MESSAGES, QUICK_MESSAGES = 12, 5
SETTINGS = {"LOOM_PAGE_SIZE": str(OPENED_ROWS), "LOOM_MAX_INPUT_TOKENS": "20000"}
"""The window is small enough for both sessions to fill it, so that assembling it is equal work."""

TEXT = "[[wire: words=5]] And now?"
ANSWER = make_answer(Random(2))


@dataclass(frozen=True, slots=True)
class Pair:
    """The two sessions. ``older`` holds a cursor for each with a whole page before it."""

    old: Session
    young: Session

    @property
    def older(self) -> tuple[str, str]:
        rows = YOUNG_TURNS // TURNS_PER_EXCHANGE * ROWS_PER_EXCHANGE
        return f"seq:{self.old.last_seq - rows + OLDER_ROWS + 1}", f"seq:{OLDER_ROWS + 1}"


type Times = tuple[list[float], list[float]]
"""Times in seconds for the old and for the young session."""


def measure(bench: Bench) -> list[Figure]:
    rounds = QUICK_ROUNDS if bench.is_quick else ROUNDS
    pair = Pair(bench.new_session(), bench.new_session())
    began = perf_counter()
    write_history(pair.old, turns=QUICK_OLD_TURNS if bench.is_quick else OLD_TURNS)
    built = perf_counter() - began
    write_history(pair.young, turns=YOUNG_TURNS)
    index_waiting()  # otherwise the server does it during the measurement
    logging.getLogger("conversations").setLevel(logging.WARNING)
    figures = [
        Figure(name="turns of the old session", value=pair.old.turn_count),
        Figure(name="time to write them", value=built, unit="s"),
        *_reading(pair, rounds),
        *_queries(pair),
    ]
    with running_wire() as wire:
        settings = SETTINGS | wire.settings
        with running_server(bench.data_dir, settings=settings) as server:
            cookie = server.sign_in()
            sleep(IDLE_SECONDS)  # time in which the server loads the provider's SDK
            figures += _served(bench, pair, server, cookie, rounds)
            figures += _messages(pair, server, cookie, wire, is_quick=bench.is_quick)
    return figures + _appending(pair, 3 * rounds)


def _compare(work: Callable[[int], float], rounds: int) -> Times:
    """Return the times of ``work(0)`` for the old and ``work(1)`` for the young session.

    Which session is first alternates.
    """
    times: Times = ([], [])
    for _ in range(3):
        work(0), work(1)
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            times[which].append(work(which))
    return times


def _ratio(name: str, times: Times) -> Figure:
    return Figure(
        name=f"{name}, old/young", value=median(times[0]) / median(times[1]), at_most=MAX_RATIO
    )


def _timed(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def _compared(name: str, work: Callable[[int], object], rounds: int) -> list[Figure]:
    times = _compare(lambda which: _timed(lambda: work(which)), rounds)
    return [
        Figure(name=f"{name}, old", value=1000 * median(times[0]), unit="ms"),
        _ratio(name, times),
    ]


def _reading(pair: Pair, rounds: int) -> list[Figure]:
    uuids, pks = (pair.old.uuid, pair.young.uuid), (pair.old.pk, pair.young.pk)

    def read_opening(which: int) -> object:
        return read_page(get_session(uuids[which]), limit=OPENED_ROWS)

    def read_older(which: int) -> object:
        before = parse_cursor(pair.older[which])
        return read_page(get_session(uuids[which]), limit=OLDER_ROWS, before=before)

    def read_early_state(which: int) -> object:
        session = (pair.old, pair.young)[which]
        turn = session.turn_count - YOUNG_TURNS // 2 - 1
        return rebuild_state_text(session.pk, turn=turn, seq=session.last_seq, rewinds=0)

    return [
        *_compared("session state", lambda which: read_state_text(pks[which]), rounds),
        *_compared("session state of an earlier turn", read_early_state, rounds),
        *_compared(f"opening page, {OPENED_ROWS} rows, archive", read_opening, rounds),
        *_compared(f"older page, {OLDER_ROWS} rows, archive", read_older, rounds),
    ]


def _appending(pair: Pair, rounds: int) -> list[Figure]:
    sessions = (pair.old, pair.young)
    turn = NewTurn(role="assistant", content=ANSWER)
    new = NewEvent(payload=AssistantText(text=ANSWER), new=0)
    events = [prepare_event(new, session_uuid=session.uuid) for session in sessions]

    def append_one(which: int) -> object:
        session = sessions[which]
        return append(session.pk, session_uuid=session.uuid, turns=[turn], events=[events[which]])

    return _compared("append of a turn and a row", append_one, rounds)


def _queries(pair: Pair) -> list[Figure]:
    """Count the SQL statements of a page, including middleware."""
    client = Client(headers={"host": "127.0.0.1"})
    client.force_login(
        User.objects.filter(is_superuser=True).order_by("pk").get(),
        "django.contrib.auth.backends.ModelBackend",
    )

    def count(path: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            response = client.get(path, headers={"HX-Request": "true"} if "?" in path else {})
        assert response.status_code == 200, path
        return len(queries)

    opening = [count(f"/s/{session.uuid}/") for session in (pair.old, pair.young)]
    older = [
        count(f"/s/{session.uuid}/?before={before}")
        for session, before in zip((pair.old, pair.young), pair.older, strict=True)
    ]
    return [
        Figure(name="queries of the opening page, old", value=opening[0], at_most=opening[1]),
        Figure(name="queries of the opening page, young", value=opening[1]),
        Figure(name="queries of the older page, old", value=older[0], at_most=older[1]),
        Figure(name="queries of the older page, young", value=older[1]),
    ]


def _served(bench: Bench, pair: Pair, server: Server, cookie: str, rounds: int) -> Iterator[Figure]:
    reader = PageReader(port=server.port, cookie=cookie)
    uuids = (pair.old.uuid, pair.young.uuid)
    opening = [f"/s/{uuid}/" for uuid in uuids]
    older = [f"/s/{u}/?before={before}" for u, before in zip(uuids, pair.older, strict=True)]
    newest, before = f"newest {OPENED_ROWS} rows", f"{OLDER_ROWS} older rows"
    for name, paths, rows, goal in (
        (newest, opening, OPENED_ROWS, 25),
        (before, older, OLDER_ROWS, 60),
    ):
        is_part = rows == OLDER_ROWS
        reader.read(paths[0], fragment=is_part)
        pieces = bench.data_dir / "pieces.sqlite3"
        write_pieces(pieces, reader.html, on_page=rows, count=pair.old.last_seq)
        with reading_bare(pieces) as bare:
            limits: list[float] = []

            def load(
                which: int, paths: list[str] = paths, is_part: bool = is_part, rows: int = rows
            ) -> float:
                took = reader.read(paths[which], fragment=is_part)
                assert reader.html.count("data-seq=") == rows
                return took

            times = _compare(load, rounds)
            limits = [bare.read(f"/?limit={rows}") for _ in range(rounds)]
        for label, share in ("median", 0.5), ("p95", 0.95):
            yield Figure(
                name=f"{name} of the old session, {label}",
                value=1000 * percentile(times[0], share),
                unit="ms",
                at_most=goal if label == "p95" else None,
                limit=1000 * percentile(limits, share),
            )
        yield _ratio(name, times)
    reader.close()


def _messages(
    pair: Pair, server: Server, cookie: str, wire: Wire, *, is_quick: bool
) -> list[Figure]:
    count = QUICK_MESSAGES if is_quick else MESSAGES
    moments = asyncio.run(_converse(pair, server.port, cookie, count))
    times: Times = ([], [])
    for (which, sent, first), answer in zip(moments, wire.take_answers(), strict=True):
        added = (first - sent) - (answer.pieces()[0].at - answer.arrived)
        times[which].append(added / 1e9)
    kept: Times = (times[0][2:], times[1][2:])
    return [
        Figure(name="added to the first word, old", value=1000 * median(kept[0]), unit="ms"),
        _ratio("added to the first word", kept),
    ]


async def _converse(pair: Pair, port: int, cookie: str, count: int) -> list[tuple[int, int, int]]:
    """Return for each message its session, the time of sending and the time of the first word."""
    pages = [
        PageSocket(port=port, cookie=cookie, session=session.uuid)
        for session in (pair.old, pair.young)
    ]
    for page in pages:
        await page.open()
    moments = []
    for _ in range(count + 2):
        for which, page in enumerate(pages):
            known, sent = len(page.received), monotonic_ns()
            await page.send(TEXT)
            await page.wait_until_idle(seconds=30)
            moments.append((which, sent, page.drafts(since=known)[0][0]))
    for page in pages:
        await page.close()
    return moments
