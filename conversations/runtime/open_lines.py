"""How many sockets and streams each person has open in this process.

Each costs memory and a share of every frame for as long as it lasts, so nobody has any
number of them.
"""

from collections import Counter
from threading import Lock

from conversations.domain.errors import TooMany

SOCKETS, STREAMS = "sockets", "streams"


class ConnectionLimiter:
    """``most`` says how many of each kind a person may have. ``refused`` counts those that
    were too many."""

    def __init__(self, *, most: dict[str, int]) -> None:
        self._most = most
        self._open: Counter[tuple[str, int]] = Counter()
        self._lock = Lock()
        self.refused = 0

    def require_room(self, kind: str, person_pk: int) -> None:
        """Raises TooMany where the person has as many as may be."""
        if self._open[kind, person_pk] >= self._most[kind]:
            self.refused += 1
            raise TooMany(
                f"No more than {self._most[kind]} {kind} at a time, please. Close some first.",
                code="too_many_open",
            )

    def take(self, kind: str, person_pk: int) -> None:
        """Count one more, until :meth:`give_back`. Raises TooMany."""
        with self._lock:
            self.require_room(kind, person_pk)
            self._open[kind, person_pk] += 1

    def take_anyway(self, kind: str, person_pk: int) -> None:
        """The same for one that is let in already."""
        with self._lock:
            self._open[kind, person_pk] += 1

    def give_back(self, kind: str, person_pk: int) -> None:
        with self._lock:
            self._open[kind, person_pk] -= 1
            if self._open[kind, person_pk] <= 0:
                del self._open[kind, person_pk]
