"""The frames that pages get, as plain dicts; ``docs/protocol.md`` describes them."""

from collections.abc import Iterable, Sequence
from typing import Any

from conversations.archive.append import Row
from conversations.archive.messages import QueuedMessage
from conversations.archive.runs import ActiveRun
from conversations.archive.window_marks import WindowMark
from conversations.domain.jsontext import dump_json
from conversations.domain.runs import IDLE, RUNNING
from conversations.rendering.queue import render_queue
from conversations.rendering.window import render_meter, render_window_line

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
