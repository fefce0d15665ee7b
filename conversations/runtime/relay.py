"""Frames between processes, through Redis, where ``REDIS_URL`` is set.

Each process listens on one channel of its own and joins the group of every
session that its pages and programs follow. Only coalesced frames travel. Losing one is harmless:
rows are found again by the watcher, deltas by their offset.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from channels.layers import get_channel_layer

from .frames import Frame

if TYPE_CHECKING:
    from .engine import Runtime


SNAPSHOT_WANTED = "snapshot_wanted"
"""Between processes only: a page has come that lacks the draft so far."""


class Relay:
    def __init__(self, runtime: "Runtime", *, url: str) -> None:
        self._runtime = runtime
        self.is_used = bool(url)
        self._layer: Any = get_channel_layer() if url else None
        self._channel = ""
        self.joined: set[int] = set()
        self._outgoing: asyncio.Queue[tuple[int, Frame]] = asyncio.Queue(maxsize=1000)

    def send(self, session_pk: int, frame: Frame) -> None:
        """Pass a frame on to the other processes, without waiting for it."""
        if self.is_used and not self._outgoing.full():
            self._outgoing.put_nowait((session_pk, frame))

    def ask_for_snapshots(self, session_pk: int) -> None:
        self.send(session_pk, {"type": SNAPSHOT_WANTED})

    async def listen(self) -> None:
        """Deliver what other processes send, for ever; to be run as a task."""
        self._channel = await self._layer.new_channel("loom.")
        self.joined.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send_for_ever())
            tasks.create_task(self._join_for_ever())
            tasks.create_task(self._receive_for_ever())

    async def close(self) -> None:
        if self.is_used:
            await self._layer.flush()

    async def _send_for_ever(self) -> None:
        while True:
            session_pk, frame = await self._outgoing.get()
            message = {"type": "loom.frame", "from": self._runtime.owner.id, "s": session_pk}
            await self._layer.group_send(_group(session_pk), message | {"frame": frame})

    async def _join_for_ever(self) -> None:
        while True:
            watched = self._runtime.hub.followed()
            for session_pk in watched - self.joined:
                await self._layer.group_add(_group(session_pk), self._channel)
            for session_pk in self.joined - watched:
                await self._layer.group_discard(_group(session_pk), self._channel)
            self.joined = watched
            await asyncio.sleep(0.1)

    async def _receive_for_ever(self) -> None:
        while True:
            message = await self._layer.receive(self._channel)
            if message["from"] == self._runtime.owner.id:
                continue
            if message["frame"]["type"] == SNAPSHOT_WANTED:
                self._runtime.publish_snapshots(message["s"])
            else:
                self._runtime.hub.publish(message["s"], message["frame"])


def _group(session_pk: int) -> str:
    return f"loom.session.{session_pk}"
