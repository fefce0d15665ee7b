"""The frames that pages get, as plain dicts; ``docs/protocol.md`` describes them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from conversations.archive.append import Row
from conversations.archive.messages import QueuedMessage, queued_messages
from conversations.archive.model_calls import WindowMark, window_mark_of
from conversations.archive.runs import ActiveRun, active_runs
from conversations.archive.sessions import get_session
from conversations.archive.transcript import live_seq_of, read_live_rows
from conversations.archive.turns import MAX_PAGE
from conversations.domain.keyset import Cursor
from conversations.domain.runs import IDLE, RUNNING
from conversations.domain.text import dump_json
from conversations.rendering.rows import render_meter, render_queue, render_window_line

type Frame = dict[str, Any]

RETRYING = "retrying"
EVERY_DRAFT = "*"
"""In ``ends_draft``: whatever draft the page shows."""


def dump_frame(frame: Frame) -> str:
    """The frame as text that a socket can carry, half a surrogate pair included."""
    return dump_json(frame)


def rows_frame(rows: Iterable[Row], *, ends_draft: str = "") -> Frame:
    frame: Frame = {
        "type": "rows",
        "rows": [
            {"seq": r.seq, "event_type": r.event_type, "turn": r.turn, "html": r.html}
            | ({"client_id": r.client_id} if r.client_id else {})
            for r in rows
        ],
    }
    return frame | {"ends_draft": ends_draft} if ends_draft else frame


def state_frame(*, run_state: str, run: str, note: str, elapsed_ms: int, doing: str = "") -> Frame:
    """``note`` says what a running run waits for, ``doing`` what it does instead of
    writing."""
    return {
        "type": "state",
        "run_state": RETRYING if note and run_state == RUNNING else run_state,
        "run": run,
        "text": note or doing,
        "elapsed_ms": elapsed_ms,
    }


def idle_frame() -> Frame:
    return state_frame(run_state=IDLE, run="", note="", elapsed_ms=0)


def active_frame(run: ActiveRun | None) -> Frame:
    if run is None:
        return idle_frame()
    return state_frame(
        run_state=run.state, run=str(run.run), note=run.note, elapsed_ms=run.elapsed_ms
    )


def queue_frame(waiting: Sequence[QueuedMessage]) -> Frame:
    items = [
        {"run": str(m.run), "text": m.text, "client_id": m.client_id}
        | ({"attachments": m.attachments} if m.attachments else {})
        for m in waiting
    ]
    html = render_queue((m.run, m.text, m.attachments) for m in waiting)
    return {"type": "queue", "items": items, "html": html}


def window_frame(mark: WindowMark) -> Frame:
    """Where the window starts and how full it is, with the HTML that shows it."""
    return {
        "type": "window",
        "key": mark.key,
        "floor": mark.floor,
        "left_out": mark.left_out,
        "tokens": mark.tokens,
        "limit": mark.limit,
        "line": render_window_line(mark.session, left_out=mark.left_out),
        "meter": render_meter(
            mark.session, tokens=mark.tokens, limit=mark.limit, cost_microusd=mark.cost_microusd
        ),
    }


# What a page that connects has missed, read in one go.


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

    def frames(self, state: Frame, drafts: Sequence[Frame], *, hello: bool) -> list[Frame]:
        """The frames that bring the page up to date. ``state`` is that of the run that is
        active, ``drafts`` are what it has written so far."""
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
        return [*frames, queue_frame(self.queue), window_frame(self.window), state, *drafts]


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
