"""Removing the contents that purged sessions named.

The purge only notes them, in its transaction, so that a crash loses none of the work.
A content that something else names stays. So does, for an hour, one that somebody
touched: it may be about to be named (``archive.blobs``).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from conversations.archive.blobs import remove_untouched
from conversations.archive.purge import forget_contents, named_elsewhere, waiting_contents
from conversations.changes.prune import listed_digests

SETTLED = timedelta(hours=1)
"""Longer than anybody counts on a blob without touching it (``listing.TOUCHED_NS``)."""


@dataclass(slots=True, kw_only=True)
class Removed:
    """Contents that went, that something else names, and that wait for a later look."""

    removed: int = 0
    shared: int = 0
    waiting: int = 0


def remove_contents(now: datetime) -> Removed:
    """Remove what can go by now."""
    found, last = Removed(), ""
    while some := waiting_contents(after=last):
        last = max(some)
        _remove(some, found, since=(now - SETTLED).timestamp())
    return found


def _remove(noted: dict[str, datetime], found: Removed, *, since: float) -> None:
    named = named_elsewhere(noted) | {digest.hex() for digest in listed_digests()}
    over = named.intersection(noted)
    found.shared += len(over)
    for digest in noted:
        if digest in named:
            continue
        if remove_untouched(digest, since=since):
            found.removed += 1
            over.add(digest)
        else:
            found.waiting += 1
    forget_contents({digest: noted[digest] for digest in over})
