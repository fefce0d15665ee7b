"""What a page that connects has missed, read in one go."""

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from conversations.archive.append import Row
from conversations.archive.messages import QueuedMessage, queued_messages
from conversations.archive.runs import ActiveRun, active_runs
from conversations.archive.sessions import get_session
from conversations.archive.transcript import live_seq_of, read_live_rows
from conversations.archive.turns import MAX_PAGE
from conversations.archive.window_marks import WindowMark, window_mark_of
from conversations.domain.cursors import Cursor

from .frames import Frame, active_frame, queue_frame, rows_frame, window_frame

if TYPE_CHECKING:
    from .engine import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """``rows`` follow the page's cursor up to ``last_seq``. ``reload`` says why the
    page has to be loaded again instead, if it has to."""

    session: UUID
    session_pk: int
    last_seq: int
    rows: list[Row]
    reload: str
    rewinds: int
    run: ActiveRun | None
    queue: list[QueuedMessage]
    window: WindowMark

    def frames(self, runtime: "Runtime", *, hello: bool) -> list[Frame]:
        """The frames that bring the page up to date, the draft included."""
        execution = runtime.execution_of(self.session_pk)
        state = execution.state_frame() if execution else active_frame(self.run)
        frames: list[Frame] = []
        if hello:
            frames.append(
                {
                    "type": "hello",
                    "session": str(self.session),
                    "last_seq": self.last_seq,
                    "rewinds": self.rewinds,
                    "run": state["run"],
                }
            )
        if self.reload:
            return [*frames, {"type": "reload", "reason": self.reload}]
        if self.rows:
            frames.append(rows_frame(self.rows))
        frames += [queue_frame(self.queue), window_frame(self.window), state]
        if execution is not None:
            return frames + execution.snapshots()
        if runtime.relay.is_used and self.run is not None:
            runtime.relay.ask_for_snapshots(self.session_pk)
        return frames + runtime.watcher.snapshots(self.session_pk)


def read_catch_up(uuid: UUID, *, cursor: Cursor | None, rewinds: int | None = None) -> CatchUp:
    """``cursor`` None: the page wants no missed rows, only what comes. ``rewinds``:
    as many had been made when the page was shown."""
    session = get_session(uuid)
    last_seq = session.last_seq
    after = last_seq if cursor is None else live_seq_of(session, cursor)
    reload = "too_far_behind" if last_seq - after > MAX_PAGE else ""
    if rewinds is not None and rewinds != session.rewind_count:
        reload = "rewound"
    missed = [] if reload else read_live_rows(session.pk, after_seq=after, limit=MAX_PAGE)
    running = active_runs(stale_seconds=60, session_pks=[session.pk])
    return CatchUp(
        session=uuid,
        session_pk=session.pk,
        last_seq=missed[-1].seq if missed else last_seq,
        rows=missed,
        reload=reload,
        rewinds=session.rewind_count,
        run=running[0] if running else None,
        queue=queued_messages(session.pk),
        window=window_mark_of(session),
    )
