"""The people who have a session open, and who of them is typing. All of it is in memory only.

Each process sends its people to the others at intervals. Those of a process that has died are
removed after a while.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

TELL_SECONDS = 0.1  # Delay of a frame, so that changes within this time are sent together.
TYPING_SECONDS = 5.0  # A person who goes on typing reports it again within this time.
BEAT_SECONDS = 10.0
LOST_SECONDS = 3 * BEAT_SECONDS

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
        self._here: dict[int, set[PresentPage]] = {}
        self._elsewhere: dict[int, dict[str, tuple[float, list[dict[str, Any]]]]] = {}
        self._due: dict[int, asyncio.TimerHandle] = {}
        self._count: dict[int, int] = {}  # people in the last frame

    def join(self, page: PresentPage) -> None:
        self._here.setdefault(page.session_pk, set()).add(page)
        self._publish_soon(page.session_pk)

    def leave(self, page: PresentPage) -> None:
        people = self._here.get(page.session_pk, set())
        people.discard(page)
        if not people:
            self._here.pop(page.session_pk, None)
        self._publish_soon(page.session_pk)

    def record_right(self, page: PresentPage, *, may_write: bool) -> None:
        page.may_write = may_write
        self._publish_soon(page.session_pk)

    def record_typing(self, page: PresentPage, *, is_writing: bool) -> None:
        if is_writing and page.typing_until > monotonic() + TYPING_SECONDS - 1:
            return  # this was reported just now
        if is_writing:
            asyncio.get_running_loop().call_later(
                TYPING_SECONDS + TELL_SECONDS, self._publish_soon, page.session_pk
            )
        page.typing_until = monotonic() + TYPING_SECONDS if is_writing else 0.0
        self._publish_soon(page.session_pk)

    def people(self, session_pk: int) -> list[dict[str, Any]]:
        """Return the people of a session by name, each once, however many pages they have open."""
        now = monotonic()
        remote = self._elsewhere.get(session_pk, {}).values()
        found = [page.as_entry() for page in self._here.get(session_pk, ())]
        found += [one for until, people in remote if until > now for one in people]
        return sorted(_once(found), key=lambda one: (one["name"], one["id"]))

    def has(self, session_pk: int, *, user_pk: int) -> bool:
        """Return whether the person has the session open, as far as is known here. Thread-safe."""
        remote = list(self._elsewhere.get(session_pk, {}).values())
        return any(one.user_pk == user_pk for one in list(self._here.get(session_pk, ()))) or any(
            one["id"] == user_pk for _, people in remote for one in people
        )

    def receive(self, session_pk: int, process: str, frame: Frame) -> None:
        """Save the people of a session that another process has sent."""
        self._elsewhere.setdefault(session_pk, {})[process] = (
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
            await asyncio.sleep(BEAT_SECONDS)
            for session_pk in self._here:
                self._relay_people(session_pk)
            self._forget_lost()

    def _forget_lost(self) -> None:
        now = monotonic()
        for session_pk, processes in list(self._elsewhere.items()):
            lost = [one for one, (until, _) in processes.items() if until <= now]
            for process in lost:
                del processes[process]
            if session_pk not in self._here:
                del self._elsewhere[session_pk]
            elif lost:
                self._show_people(session_pk)

    def _publish_soon(self, session_pk: int) -> None:
        if session_pk not in self._due:
            loop = asyncio.get_running_loop()
            self._due[session_pk] = loop.call_later(TELL_SECONDS, self._publish, session_pk)

    def _publish(self, session_pk: int) -> None:
        del self._due[session_pk]
        self._relay_people(session_pk)
        self._show_people(session_pk)

    def _relay_people(self, session_pk: int, *, wants_answer: bool = False) -> None:
        people = _once(page.as_entry() for page in self._here.get(session_pk, ()))
        frame = {"type": PRESENCE, "people": people, "wants_answer": wants_answer}
        self._relay.send(session_pk, frame)

    def _show_people(self, session_pk: int) -> None:
        people = self.people(session_pk)
        was_alone = self._count.get(session_pk, 0) < 2
        self._count[session_pk] = len(people)
        if session_pk not in self._here:
            del self._count[session_pk]
        if len(people) < 2 and was_alone:
            return  # a person who is alone needs no list
        shown = [{**one, "id": str(one["id"])} for one in people[:MAX_NAMED_PEOPLE]]
        self._show(session_pk, {"type": "people", "people": shown, "count": len(people)})


def _once(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for one in entries:
        known = found.setdefault(one["id"], dict(one))
        known["is_writing"] = known["is_writing"] or one["is_writing"]
    return list(found.values())
