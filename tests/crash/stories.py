"""Actions of people in their sessions until the server is killed, and what they were shown."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID, uuid4

from benchmarks.pages import PageSocket


@dataclass(slots=True, kw_only=True)
class Said:
    """A message of a person. ``ack`` is the server's answer, or None."""

    mark: str
    text: str
    client_id: str = field(default_factory=lambda: uuid4().hex)
    ack: dict[str, Any] | None = None


@dataclass(slots=True)
class Person:
    """A person with one open session.

    ``said`` holds the messages in the order of sending, ``rows`` the HTML of each row that the
    page was shown, by seq.
    """

    name: str
    session: UUID
    said: list[Said] = field(default_factory=list)
    rows: dict[int, str] = field(default_factory=dict)
    page: PageSocket | None = None
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def say(self, directive: str) -> None:
        assert self.page is not None
        mark = f"{self.name}-{len(self.said)}"
        said = Said(mark=mark, text=f"[[wire: {directive}]] #{mark}#")
        self.said.append(said)
        self.has_begun.set()
        said.ack = await self.page.send(said.text, client_id=said.client_id)

    async def wait(self) -> None:
        assert self.page is not None
        await self.page.wait_until_idle(seconds=60)

    def note_rows(self) -> None:
        """Store the rows that the page was shown as done."""
        assert self.page is not None
        for _, text in self.page.received:
            if '"type":"rows"' in text[:40]:
                frame = json.loads(text)
                self.rows |= {row["seq"]: row["html"] for row in frame["rows"]}

    @property
    def acknowledged(self) -> list[Said]:
        return [said for said in self.said if said.ack is not None]


async def tell_long_answer(person: Person) -> None:
    """Ask for one long answer, and send a message that waits behind it."""
    await person.say("words=260 chunk=7 rate=60")
    await person.say("words=8")
    await person.wait()


async def chat_fast(person: Person) -> None:
    """Send short messages, each as soon as the last one is answered."""
    for _ in range(500):
        await person.say("words=12 chunk=5 rate=200")
        await person.wait()


async def think_first(person: Person) -> None:
    await person.say("thinking=60 words=150 chunk=7 rate=80")
    await person.wait()


async def call_tools(person: Person) -> None:
    """Ask for answers that repeatedly call a tool that does not exist."""
    for _ in range(50):
        await person.say(
            'words=30 chunk=6 rate=120 rounds=2 tool=read_file input={"path": "notes.txt"}'
        )
        await person.wait()


async def burst(person: Person) -> None:
    """Ask for one very long and fast answer after the other."""
    for _ in range(50):
        await person.say("words=1500 chunk=8 rate=300")
        await person.wait()


type Story = Callable[[Person], Coroutine[Any, Any, None]]

STORIES: tuple[Story, ...] = (
    tell_long_answer,
    chat_fast,
    think_first,
    call_tools,
    burst,
    tell_long_answer,
)


async def live(person: Person, story: Story, *, port: int, cookie: str, random: Random) -> None:
    """Open the page and play the story until the connection is lost."""
    person.page = PageSocket(port=port, cookie=cookie, session=person.session)
    try:
        await person.page.open()
        await asyncio.sleep(random.uniform(0, 0.3))
        await story(person)
    except (ConnectionError, OSError):
        return
