"""What remains of a purged session, as its digest covers it."""

from datetime import datetime
from typing import NamedTuple

from .digest import instant, next_digest


class Received(NamedTuple):
    """The columns of a receipt that its digest covers, in this order."""

    uuid: str
    session: str
    workspace: str
    owner: str
    key: str
    channel: str
    created_at: datetime
    last_active_at: datetime
    purged_at: datetime
    ordered_by: int | None
    ordered_by_name: str
    reason: str
    by_policy: bool
    turns: int
    events: int
    counts: str
    turn_digest: str
    event_digest: str
    cold_name: str
    cold_digest: str


def receipt_digest(receipt: Received) -> str:
    """SHA-256 over the columns as compact JSON."""
    values = (instant(item) if isinstance(item, datetime) else item for item in receipt)
    return next_digest("loom:receipt", tuple(values))
