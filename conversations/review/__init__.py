"""What reviewers need: the queue of sessions, samples, notes, flags and marks."""

from .queue import (
    FLAGGED,
    HAS_ERRORS,
    QueueFilters,
    QueueItem,
    QueuePage,
    draw_sample,
    next_unreviewed,
    read_items,
    read_queue,
)
from .remarks import (
    Remarks,
    mark_reviewed,
    mark_unreviewed,
    read_remarks,
    resolve_flag,
    set_flag,
    withdraw_note,
    write_note,
)

__all__ = [
    "FLAGGED",
    "HAS_ERRORS",
    "QueueFilters",
    "QueueItem",
    "QueuePage",
    "Remarks",
    "draw_sample",
    "mark_reviewed",
    "mark_unreviewed",
    "next_unreviewed",
    "read_items",
    "read_queue",
    "read_remarks",
    "resolve_flag",
    "set_flag",
    "withdraw_note",
    "write_note",
]
