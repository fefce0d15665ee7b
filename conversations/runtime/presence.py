"""The people who have a session open, and who of them is typing. All of it is in memory only.

Each process sends its people to the others at intervals. Those of a process that has died are
removed after a while.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

DELAY_SECONDS = 0.1  # Delay of a frame, so that changes within this time are sent together.
TYPING_SECONDS = 5.0  # A person who goes on typing reports it again within this time.
HEARTBEAT_SECONDS = 10.0
LOST_SECONDS = 3 * HEARTBEAT_SECONDS

MAX_NAMED_PEOPLE = 50  # Limit for one frame.

# Type of frames between processes: the people of one, and whether it asks for those of others.
PRESENCE = "presence"

type Frame = dict[str, Any]


@dataclass(slots=True, eq=False)
class PresentPage:
    """A page that a person has open. ``typing_until`` is a time of ``monotonic``."""

    session_pk: int
    user_pk: int
    name: str
    may_write: bool
    typing_until: float = 0.0

    def as_entry(self) -> dict[str, Any]:
        is_typing = self.typing_until > monotonic()
        return {
            "id": self.user_pk,
            "name": self.name,
            "may_write": self.may_write,
            "is_writing": is_typing,
        }


class Sender(Protocol):
    def send(self, session_pk: int, frame: Frame) -> None: ...


class Presence:
    """The people who have sessions open, in this process and in others.

    ``show`` sends a frame to the pages of this process, ``relay`` to other processes.
    """

    def __init__(self, show: Callable[[int, Frame], None], relay: Sender) -> None:
        self._show = show
        self._relay = relay
        self._pages: dict[int, set[PresentPage]] = {}
        self._remote_people: dict[int, dict[str, tuple[float, list[dict[str, Any]]]]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._shown_counts: dict[int, int] = {}  # people in the last frame

    def join(self, page: PresentPage) -> None:
        self._pages.setdefault(page.session_pk, set()).add(page)
        self._publish_soon(page.session_pk)

    def leave(self, page: PresentPage) -> None:
        people = self._pages.get(page.session_pk, set())
        people.discard(page)
        if not people:
            self._pages.pop(page.session_pk, None)
        self._publish_soon(page.session_pk)

    def record_right(self, page: PresentPage, *, may_write: bool) -> None:
        page.may_write = may_write
        self._publish_soon(page.session_pk)

    def record_typing(self, page: PresentPage, *, is_writing: bool) -> None:
        if is_writing and page.typing_until > monotonic() + TYPING_SECONDS - 1:
            return  # this was reported just now
        if is_writing:
            asyncio.get_running_loop().call_later(
                TYPING_SECONDS + DELAY_SECONDS, self._publish_soon, page.session_pk
            )
        page.typing_until = monotonic() + TYPING_SECONDS if is_writing else 0.0
        self._publish_soon(page.session_pk)

    def people(self, session_pk: int) -> list[dict[str, Any]]:
        """Return the people of a session by name, each once, however many pages they have open."""
        now = monotonic()
        remote = self._remote_people.get(session_pk, {}).values()
        entries = [page.as_entry() for page in self._pages.get(session_pk, ())]
        entries += [entry for expires_at, people in remote if expires_at > now for entry in people]
        return sorted(_merge_entries(entries), key=lambda entry: (entry["name"], entry["id"]))

    def has(self, session_pk: int, *, user_pk: int) -> bool:
        """Return whether the person has the session open, as far as is known here. Thread-safe."""
        pages = list(self._pages.get(session_pk, ()))
        if any(page.user_pk == user_pk for page in pages):
            return True
        remote = list(self._remote_people.get(session_pk, {}).values())
        return any(entry["id"] == user_pk for _, people in remote for entry in people)

    def receive(self, session_pk: int, process: str, frame: Frame) -> None:
        """Save the people of a session that another process has sent."""
        self._remote_people.setdefault(session_pk, {})[process] = (
            monotonic() + LOST_SECONDS,
            frame["people"],
        )
        if frame["wants_answer"]:
            self._relay_people(session_pk)
        self._show_people(session_pk)

    def ask_others(self, session_pk: int) -> None:
        """Ask the other processes for the people of a session that this one has begun to follow."""
        self._relay_people(session_pk, wants_answer=True)

    async def run_heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            for session_pk in self._pages:
                self._relay_people(session_pk)
            self._forget_lost()

    def _forget_lost(self) -> None:
        now = monotonic()
        for session_pk, processes in list(self._remote_people.items()):
            lost = [process for process, (expires_at, _) in processes.items() if expires_at <= now]
            for process in lost:
                del processes[process]
            if session_pk not in self._pages:
                del self._remote_people[session_pk]
            elif lost:
                self._show_people(session_pk)

    def _publish_soon(self, session_pk: int) -> None:
        if session_pk not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[session_pk] = loop.call_later(DELAY_SECONDS, self._publish, session_pk)

    def _publish(self, session_pk: int) -> None:
        del self._timers[session_pk]
        self._relay_people(session_pk)
        self._show_people(session_pk)

    def _relay_people(self, session_pk: int, *, wants_answer: bool = False) -> None:
        people = _merge_entries(page.as_entry() for page in self._pages.get(session_pk, ()))
        frame = {"type": PRESENCE, "people": people, "wants_answer": wants_answer}
        self._relay.send(session_pk, frame)

    def _show_people(self, session_pk: int) -> None:
        people = self.people(session_pk)
        was_alone = self._shown_counts.get(session_pk, 0) < 2
        self._shown_counts[session_pk] = len(people)
        if session_pk not in self._pages:
            del self._shown_counts[session_pk]
        if len(people) < 2 and was_alone:
            return  # a person who is alone needs no list
        named = [{**entry, "id": str(entry["id"])} for entry in people[:MAX_NAMED_PEOPLE]]
        self._show(session_pk, {"type": "people", "people": named, "count": len(people)})


def _merge_entries(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    by_id: dict[int, dict[str, Any]] = {}
    for entry in entries:
        merged = by_id.setdefault(entry["id"], dict(entry))
        merged["is_writing"] = merged["is_writing"] or entry["is_writing"]
    return list(by_id.values())
