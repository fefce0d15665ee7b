"""Fan-out within this process: from a session's run to the sockets that watch it.

Frames are serialised once and handed straight to each subscriber. A subscriber
that is still catching up is held: rows wait in its backlog, deltas are left out,
since the snapshot that it gets afterwards has them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from .frames import Frame, dump_frame


@dataclass(slots=True, eq=False)
class Subscriber:
    """A page that watches a session. ``deliver`` takes one frame as JSON text.
    ``reached`` is the seq of the last row it got."""

    session_pk: int
    deliver: Callable[[str], None]
    reached: int = 0
    held: bool = True
    backlog: list[Frame] = field(default_factory=list)

    def release(self) -> None:
        """Go live: deliver what came while the subscriber was catching up."""
        self.held = False
        backlog, self.backlog = self.backlog, []
        for frame in backlog:
            self.offer(frame, None)

    def offer(self, frame: Frame, text: str | None) -> None:
        if self.held:
            if frame["type"] != "draft":
                self.backlog.append(frame)
            return
        if frame["type"] == "rows":
            self._offer_rows(frame, text)
        else:
            self.deliver(text or dump_frame(frame))

    def _offer_rows(self, frame: Frame, text: str | None) -> None:
        fresh = [row for row in frame["rows"] if row["seq"] > self.reached]
        if not fresh and "ends_draft" not in frame:
            return
        if len(fresh) != len(frame["rows"]):
            frame, text = frame | {"rows": fresh}, None
        if fresh:
            self.reached = fresh[-1]["seq"]
        self.deliver(text or dump_frame(frame))


class Hub:
    """All subscribers of this process, by session."""

    def __init__(self) -> None:
        self._subscribers: dict[int, set[Subscriber]] = {}

    def add(self, subscriber: Subscriber) -> None:
        self._subscribers.setdefault(subscriber.session_pk, set()).add(subscriber)

    def remove(self, subscriber: Subscriber) -> None:
        watchers = self._subscribers.get(subscriber.session_pk, set())
        watchers.discard(subscriber)
        if not watchers:
            self._subscribers.pop(subscriber.session_pk, None)

    def watched(self) -> list[int]:
        return list(self._subscribers)

    @property
    def subscriber_count(self) -> int:
        return sum(len(watchers) for watchers in self._subscribers.values())

    def is_watched(self, session_pk: int) -> bool:
        return session_pk in self._subscribers

    def lowest_reached(self, session_pk: int) -> int:
        """The seq up to which every released watcher of the session has its rows."""
        return min(
            (s.reached for s in self._subscribers.get(session_pk, ()) if not s.held), default=0
        )

    def publish(self, session_pk: int, frame: Frame) -> None:
        watchers = self._subscribers.get(session_pk)
        if not watchers:
            return
        text = dump_frame(frame)
        for subscriber in tuple(watchers):
            subscriber.offer(frame, text)
