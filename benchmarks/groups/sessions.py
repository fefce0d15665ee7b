"""The session list of a workspace with ten thousand sessions."""

import re
from datetime import timedelta

from django.utils import timezone

from benchmarks.bare import reading_bare, write_pieces
from benchmarks.bench import WORKSPACE, Bench
from benchmarks.figures import Figure, percentile
from benchmarks.pages import PageReader
from benchmarks.processes import running_server
from conversations.domain.text import first_digest
from conversations.models import Session

SESSIONS, QUICK_SESSIONS = 10_000, 1_000
ROUNDS, QUICK_ROUNDS = 100, 30


def measure(bench: Bench) -> list[Figure]:
    count = QUICK_SESSIONS if bench.is_quick else SESSIONS
    rounds = QUICK_ROUNDS if bench.is_quick else ROUNDS
    _write(bench, count)
    pieces = bench.data_dir / "list.sqlite3"
    with running_server(bench.data_dir) as server:
        reader = PageReader(port=server.port, cookie=server.sign_in())
        reader.read(f"/w/{WORKSPACE}/")
        shown = count_sessions(reader.html)
        write_pieces(pieces, reader.html, on_page=shown, count=count)
        with reading_bare(pieces) as bare:
            times, limits = [], []
            for _ in range(rounds):
                times.append(1000 * reader.read(f"/w/{WORKSPACE}/"))
                limits.append(1000 * bare.read(f"/?limit={shown}"))
        reader.close()
    return [
        Figure(
            name=f"list of {count:,} sessions, {name}",
            value=percentile(times, share),
            unit="ms",
            at_most=goal,
            limit=percentile(limits, share),
        )
        for name, share, goal in (("median", 0.5, None), ("p95", 0.95, 15))
    ]


def count_sessions(html: str) -> int:
    """Return the number of sessions on a page, which names each session several times."""
    return len(set(re.findall(r"Session number \d+", html)))


def _write(bench: Bench, count: int) -> None:
    pattern, now = bench.new_session(), timezone.now()
    made = []
    for number in range(count):
        at = now - timedelta(minutes=10 * number)
        session = Session(
            workspace_id=pattern.workspace_id,
            owner_id=pattern.owner_id,
            title=f"Session number {number}",
            created_at=at,
            last_active_at=at,
        )
        session.turn_digest = first_digest(session.uuid, chain="turns")
        session.event_digest = first_digest(session.uuid, chain="events")
        made.append(session)
    Session.objects.bulk_create(made, batch_size=500)
