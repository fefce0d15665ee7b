"""Places, each with its messages in order.

A place that may have missed something is behind: before anything else is taken there, the
messages that follow the last one taken are read. After a connection was lost Discord sends
what was missed by itself, if it still knows the connection; if not, and whenever a process
starts, all places are behind.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

import discord

from conversations.domain.discord_rules import Spot

from .trying import keep_trying

logger = logging.getLogger(__name__)

RECENT = 200
"""Messages of a place that are remembered as taken, beside the mark."""

type Take = Callable[["PlaceInbox", discord.Message], Awaitable[None]]


class PlaceInbox:
    """The messages of one place. ``taken`` is the newest one that was dealt with,
    ``passed_by`` counts those that did not concern the bot."""

    def __init__(
        self,
        channel: discord.PartialMessageable,
        *,
        spot: Spot,
        key: str,
        taken: int,
        is_behind: bool,
        take: Take,
    ) -> None:
        self.channel = channel
        self.spot = spot
        self.key = key
        self.taken = taken
        self.is_behind = is_behind
        self.passed_by = 0
        self._take = take
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._waiting: asyncio.Queue[discord.Message | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def put(self, message: discord.Message) -> None:
        self._waiting.put_nowait(message)
        self._begin()

    def catch_up(self) -> None:
        """Something may have been missed."""
        self.is_behind = True
        self._waiting.put_nowait(None)
        self._begin()

    @property
    def is_idle(self) -> bool:
        return self._task is None or self._task.done()

    async def close(self) -> None:
        """Leave what waits to the next start, once the message in hand is dealt with."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._closed = True
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=5)
            self._task.cancel()

    def _begin(self) -> None:
        if not self._closed and self.is_idle:
            self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while not self._waiting.empty() and not self._closed:
            message = self._waiting.get_nowait()
            if self.is_behind:
                await self._until_it_works(self._read_missed)
            if message is not None:
                await self._deal_with(message)

    async def _read_missed(self) -> None:
        """Take the messages after the last one that was taken, oldest first."""
        try:
            history = self.channel.history(
                limit=None, after=discord.Object(self.taken), oldest_first=True
            )
            async for message in history:
                await self._deal_with(message)
        except (discord.Forbidden, discord.NotFound) as error:
            logger.info("discord_place_closed: %s", error)
        self.is_behind = False

    async def _deal_with(self, message: discord.Message) -> None:
        if message.id in self._recent:
            return

        async def take() -> None:
            await self._take(self, message)

        if await self._until_it_works(take):
            self._recent.append(message.id)
            self.taken = max(self.taken, message.id)

    async def _until_it_works(self, work: Callable[[], Awaitable[None]]) -> bool:
        """A message is never skipped for what may pass. A fault of ours costs one message,
        no more. False: the process ends before it has worked."""

        async def carry_out() -> bool:
            await work()
            return True

        try:
            return await keep_trying(carry_out, is_over=lambda: self._closed) is not None
        except Exception:
            logger.exception("discord_message_failed", extra={"fields": {"key": self.key}})
            return True
