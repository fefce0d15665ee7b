"""The time to import sessions, and the disk space of their turns, rows and index.

The limit of the import is plain SQLite with the same turns and their digests, without rows, in one
transaction per session.
"""

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from django.core.management import call_command
from django.db import connection
from django.utils import timezone

from benchmarks.bench import WORKSPACE, Bench
from benchmarks.figures import Figure
from benchmarks.history import make_answer
from benchmarks.store import Store
from conversations.domain.events import (
    AssistantText,
    Payload,
    TurnSeparator,
    UserMessage,
    event_type_of,
    payload_data,
)
from conversations.domain.text import dump_json
from conversations.domain.turns import USER, NewTurn
from conversations.models import ChatEvent, Turn

SESSIONS, QUICK_SESSIONS, TURNS_PER_SESSION = 100, 10, 200
DISTINCT_EXCHANGES = 200
"""A session uses half of them."""

ROWS_PER_EXCHANGE = 3


def measure(bench: Bench) -> list[Figure]:
    count = QUICK_SESSIONS if bench.is_quick else SESSIONS
    random = Random(4)
    exchanges = [
        (make_answer(random)[:200], make_answer(random)) for _ in range(DISTINCT_EXCHANGES)
    ]
    sessions = [list(_turns(random, exchanges)) for _ in range(count)]
    file = bench.data_dir / "sessions.jsonl"
    lines = (line for turns in sessions for line in make_lines(turns))
    file.write_text("".join(f"{dump_json(line)}\n" for line in lines))
    known, rows, before = Turn.objects.count(), ChatEvent.objects.count(), _bytes_in_use()
    began = perf_counter()
    call_command("import_sessions", str(file), "--workspace", WORKSPACE, stdout=StringIO())
    took, turns = perf_counter() - began, count * TURNS_PER_SESSION
    assert Turn.objects.count() == known + turns
    assert ChatEvent.objects.count() == rows + turns // 2 * ROWS_PER_EXCHANGE
    text = sum(len(turn.content.encode()) for session in sessions for turn in session)
    return [
        Figure(
            name="import with rows and index",
            value=turns / took,
            unit="turns/s",
            at_least=10_000,
            limit=turns / _store(bench.data_dir / "store.sqlite3", sessions),
        ),
        Figure(
            name="disk by bytes of text, rows and index included",
            value=(_bytes_in_use() - before) / text,
            at_most=3,
        ),
        Figure(name="text of a turn", value=text / turns, unit="bytes"),
    ]


def _turns(random: Random, exchanges: list[tuple[str, str]]) -> Iterator[NewTurn]:
    for question, answer in random.sample(exchanges, TURNS_PER_SESSION // 2):
        yield NewTurn(role="user", content=question)
        yield NewTurn(role="assistant", content=answer)


def make_lines(turns: list[NewTurn]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a session in the format of an export: its turns, and then its rows."""
    yield {"type": "session", "title": turns[0].content[:40]}
    for number, turn in enumerate(turns, start=1):
        yield {"type": "turn", "number": number, "role": turn.role, "content": turn.content}
    seq = 0
    for number, turn in enumerate(turns, start=1):
        payloads: list[Payload] = (
            [UserMessage(text=turn.content)]
            if turn.role == USER
            else [AssistantText(text=turn.content), TurnSeparator(stop_reason="end_turn")]
        )
        for payload in payloads:
            seq += 1
            kind, data = event_type_of(payload), payload_data(payload)
            yield {"type": "event", "seq": seq, "event_type": kind, "payload": data, "turn": number}


def _store(path: Path, sessions: list[list[NewTurn]]) -> float:
    """Return the seconds that plain SQLite needs for the turns of the sessions."""
    store, at = Store(path), timezone.now()
    taken = sum(
        store.append_all(turns, session=number, at=at) for number, turns in enumerate(sessions)
    )
    store.close()
    return taken


def _bytes_in_use() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (page_count - freelist_count) * page_size"
            " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
        )
        [(size,)] = cursor.fetchall()
    return int(size)
