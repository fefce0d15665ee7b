"""Watching whether the people with open pages in this process still have access.

One query every few seconds checks all pages together. It also finds sign-outs and lost rights that
another process has written.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from threading import Lock

from django.db import DatabaseError

from conversations.archive.rights import AccessSnapshot, OpenPage, read_snapshots
from conversations.domain.errors import TooManyRequests, Unavailable
from conversations.domain.messages import say

from .database import Readers

logger = logging.getLogger(__name__)

LOOK_INTERVAL_SECONDS = 2.0  # Pages stay open up to this long after access is lost

# Access of a person who is not a member depends on more than a role and is slower to read, so it is
# checked again only at every fifth look.
OUTSIDER_INTERVAL_LOOKS = 5


class WatchedAccess:
    """The access of an open page, as the refresher watches it.

    ``initial`` is the snapshot from when the page was opened, ``latest`` the one of the last look.
    ``recheck`` starts a full check of the person's rights, which closes the page's socket if they
    have lost access. It returns without waiting for that check.
    """

    def __init__(
        self, place: OpenPage, snapshot: AccessSnapshot | None, recheck: Callable[[], None]
    ) -> None:
        self.place = place
        self.initial = self.latest = snapshot
        self.recheck = recheck


class AccessRefresher:
    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._watched: set[WatchedAccess] = set()

    def add(self, access: WatchedAccess) -> None:
        self._watched.add(access)

    def remove(self, access: WatchedAccess) -> None:
        self._watched.discard(access)

    async def run(self) -> None:
        look = 0
        while True:
            await asyncio.sleep(LOOK_INTERVAL_SECONDS)
            look += 1
            watched = list(self._watched)
            places = {access.place for access in watched}
            try:
                snapshots = await self._readers.read(read_snapshots, places) if places else {}
            except (DatabaseError, Unavailable) as error:
                fields = {"error_class": type(error).__name__}
                logger.warning("session_not_rechecked", extra={"fields": fields})
                continue
            asks_outsiders = look % OUTSIDER_INTERVAL_LOOKS == 0
            for access in watched:
                snapshot = snapshots[access.place]
                is_outside = snapshot is not None and snapshot.role is None
                if snapshot is None or snapshot != access.latest or (is_outside and asks_outsiders):
                    access.latest = snapshot
                    access.recheck()


# Kinds of connections that are counted for each person in this process.
SOCKETS, STREAMS = "sockets", "streams"
_TOO_MANY = {
    SOCKETS: say("At most %(limit)s sockets can be open at a time. Close some first."),
    STREAMS: say("At most %(limit)s streams can be open at a time. Close some first."),
}


class ConnectionLimiter:
    """A limit on the sockets and streams that each person has open in this process.

    ``most`` maps each kind to its limit. ``refused`` counts the connections that were refused.
    """

    def __init__(self, *, limits: dict[str, int]) -> None:
        self._limits = limits
        self._open_counts: Counter[tuple[str, int]] = Counter()
        self._lock = Lock()
        self.refused = 0

    def require_room(self, kind: str, person_pk: int) -> None:
        """Raise TooManyRequests if the person has reached the limit."""
        if self._open_counts[kind, person_pk] >= self._limits[kind]:
            self.refused += 1
            raise TooManyRequests(
                say(_TOO_MANY[kind], limit=self._limits[kind]), code="too_many_open"
            )

    def acquire(self, kind: str, person_pk: int) -> None:
        """Count one more connection until :meth:`release`. Raise TooManyRequests at the limit."""
        with self._lock:
            self.require_room(kind, person_pk)
            self._open_counts[kind, person_pk] += 1

    def acquire_anyway(self, kind: str, person_pk: int) -> None:
        """Count one more connection that has already been let in, whatever the limit."""
        with self._lock:
            self._open_counts[kind, person_pk] += 1

    def release(self, kind: str, person_pk: int) -> None:
        with self._lock:
            self._open_counts[kind, person_pk] -= 1
            if self._open_counts[kind, person_pk] <= 0:
                del self._open_counts[kind, person_pk]
