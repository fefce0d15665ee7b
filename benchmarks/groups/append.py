"""One writer that appends a turn and its row durably to a session of 1,000 turns.

The limit is the same data in three plain SQL statements. Both are measured alternately.
"""

from random import Random
from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.figures import Figure, percentile
from benchmarks.history import make_answer, write_history
from benchmarks.store import Store
from conversations.archive.append import NewEvent, append, prepare_event
from conversations.domain.events import AssistantText
from conversations.domain.turns import NewTurn

TURNS = 1000
APPENDS, QUICK_APPENDS = 2000, 300
ANSWER = make_answer(Random(2))


def measure(bench: Bench) -> list[Figure]:
    session = bench.new_session()
    write_history(session, turns=TURNS)
    store = Store(bench.data_dir / "store.sqlite3")
    turn = NewTurn(role="assistant", content=ANSWER)
    new = NewEvent(payload=AssistantText(text=ANSWER), new=0)
    event = prepare_event(new, session_uuid=session.uuid)
    times, limits = [], []
    for _ in range(QUICK_APPENDS if bench.is_quick else APPENDS):
        began = perf_counter()
        append(session.pk, session_uuid=session.uuid, turns=[turn], events=[event])
        times.append(1000 * (perf_counter() - began))
        limits.append(1000 * store.append(turn, event))
    store.close()
    return [
        Figure(
            name=f"append of a turn and a row, {name}",
            value=percentile(times, share),
            unit="ms",
            at_most=goal,
            limit=percentile(limits, share),
        )
        for name, share, goal in (("median", 0.5, None), ("p95", 0.95, 1.0))
    ]
