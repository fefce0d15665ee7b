"""Several processes that append to the same sessions at once, without errors, gaps or long waits.

The limit of their throughput is plain SQLite with one turn per writer in each transaction.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from random import Random
from time import monotonic, perf_counter
from uuid import UUID

from benchmarks.bench import Bench
from benchmarks.figures import Figure, percentile
from benchmarks.history import make_answer
from benchmarks.processes import ROOT, clean_environment
from benchmarks.store import Store
from conversations.archive.append import NewEvent, append, prepare_event
from conversations.archive.sessions import get_session
from conversations.archive.verify import verify_session
from conversations.domain.events import AssistantText
from conversations.domain.turns import NewTurn
from conversations.models import Session

WRITERS = 8
SESSIONS = 4
SECONDS, QUICK_SECONDS = 12, 4
ALONE_SECONDS = 2
ANSWER = make_answer(Random(2))


def measure(bench: Bench) -> list[Figure]:
    seconds = QUICK_SECONDS if bench.is_quick else SECONDS
    sessions = [bench.new_session() for _ in range(SESSIONS)]
    outcomes = _run_writers(bench, [session.uuid for session in sessions], seconds)
    times = [time for outcome in outcomes for time in outcome["times"]]
    errors = [error for outcome in outcomes for error in outcome["errors"]]
    checked = [verify_session(get_session(session.uuid)) for session in sessions]
    missing = len(times) - sum(result.turns for result in checked)
    return [
        Figure(name=f"{WRITERS} writers: errors", value=len(errors), at_most=0),
        Figure(
            name=f"{WRITERS} writers: gaps or wrong links",
            value=sum(bool(found.problem) for found in checked),
            at_most=0,
        ),
        Figure(name=f"{WRITERS} writers: appends that are missing", value=abs(missing), at_most=0),
        Figure(
            name=f"{WRITERS} writers: appends of a turn and a row",
            value=len(times) / seconds,
            unit="/s",
            at_least=3000,
            limit=_write_alone(bench, sessions[0]),
        ),
        Figure(name="one append, median", value=1000 * percentile(times, 0.5), unit="ms"),
        Figure(name="one append, p95", value=1000 * percentile(times, 0.95), unit="ms"),
        Figure(
            name=f"{WRITERS} writers: longest append",
            value=1000 * max(times, default=0.0),
            unit="ms",
            at_most=100,
        ),
    ]


def _write_alone(bench: Bench, session: Session) -> float:
    """Return the number of turns, each with its row, that plain SQLite writes per second."""
    store = Store(bench.data_dir / "store.sqlite3")
    event = prepare_event(NewEvent(payload=AssistantText(text=ANSWER)), session_uuid=session.uuid)
    turn = NewTurn(role="assistant", content=ANSWER)
    count, end = 0, monotonic() + ALONE_SECONDS
    while monotonic() < end:
        store.append(turn, event, times=WRITERS)
        count += WRITERS
    store.close()
    return count / ALONE_SECONDS


def _run_writers(
    bench: Bench, sessions: Sequence[UUID], seconds: int
) -> list[dict[str, list[float]]]:
    command = [sys.executable, "-m", "benchmarks.writer", str(seconds), *map(str, sessions)]
    environment = clean_environment({"LOOM_DATA_DIR": str(bench.data_dir)})
    writers = [
        subprocess.Popen(  # noqa: S603 (our own)
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(WRITERS)
    ]
    for writer in writers:  # wait until all are ready before the first one starts
        assert writer.stdout is not None
        writer.stdout.readline()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    return [json.loads(writer.communicate()[0]) for writer in writers]


def append_until(sessions: Sequence[Session], *, seconds: float) -> dict[str, list[object]]:
    """Append to the sessions in turn. Return the times of successful appends, and the errors."""
    events = {
        session.pk: prepare_event(
            NewEvent(payload=AssistantText(text=ANSWER), new=0), session_uuid=session.uuid
        )
        for session in sessions
    }
    turn = NewTurn(role="assistant", content=ANSWER)
    times: list[object] = []
    errors: list[object] = []
    end = monotonic() + seconds
    while monotonic() < end:
        session = sessions[(len(times) + len(errors)) % len(sessions)]
        began = perf_counter()
        try:
            append(session.pk, session_uuid=session.uuid, turns=[turn], events=[events[session.pk]])
        except Exception as error:
            errors.append(repr(error))
        else:
            times.append(perf_counter() - began)
    return {"times": times, "errors": errors}
