"""Who has a page open here, and whether they still may: asked every few seconds for
all pages of this process at once, whichever process signed somebody out or took a
right away.
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

LOOK_INTERVAL_SECONDS = 2.0  # A page goes on watching so long after its person lost the right to

# What somebody who is no member may rests on more than a role, and costs more to find out.
OUTSIDER_INTERVAL_LOOKS = 5


class WatchedAccess:
    """A page that is open. ``initial`` is that of its beginning, ``latest`` the one of
    the last look. ``recheck`` asks everything again, and closes the page's socket if it
    must; it does not wait for that."""

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
                now = snapshots[access.place]
                is_outside = now is not None and now.role is None
                if now is None or now != access.latest or (is_outside and asks_outsiders):
                    access.latest = now
                    access.recheck()


# How many sockets and streams each person has open in this process.
SOCKETS, STREAMS = "sockets", "streams"
_TOO_MANY = {
    SOCKETS: say("At most %(limit)s sockets can be open at a time. Close some first."),
    STREAMS: say("At most %(limit)s streams can be open at a time. Close some first."),
}


class ConnectionLimiter:
    """``most`` says how many of each kind a person may have. ``refused`` counts those that
    were too many."""

    def __init__(self, *, most: dict[str, int]) -> None:
        self._most = most
        self._open: Counter[tuple[str, int]] = Counter()
        self._lock = Lock()
        self.refused = 0

    def require_room(self, kind: str, person_pk: int) -> None:
        """Raises TooManyRequests where the person has as many as may be."""
        if self._open[kind, person_pk] >= self._most[kind]:
            self.refused += 1
            raise TooManyRequests(
                say(_TOO_MANY[kind], limit=self._most[kind]), code="too_many_open"
            )

    def acquire(self, kind: str, person_pk: int) -> None:
        """Count one more, until :meth:`release`. Raises TooManyRequests."""
        with self._lock:
            self.require_room(kind, person_pk)
            self._open[kind, person_pk] += 1

    def acquire_anyway(self, kind: str, person_pk: int) -> None:
        """The same for one that is let in already."""
        with self._lock:
            self._open[kind, person_pk] += 1

    def release(self, kind: str, person_pk: int) -> None:
        with self._lock:
            self._open[kind, person_pk] -= 1
            if self._open[kind, person_pk] <= 0:
                del self._open[kind, person_pk]
