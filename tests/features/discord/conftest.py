"""A bot in a real runtime, connected by the real discord.py to a server that plays Discord."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from discord import Client
from discord.gateway import DiscordWebSocket
from discord.http import Route
from django.conf import settings
from django.contrib.auth.models import User

from conversations.archive.workspaces import create_workspace
from conversations.features.discord import posting
from conversations.features.discord.options import DiscordRules
from conversations.features.discord.worker import Bot, use_addresses
from conversations.models import Session, Workspace
from conversations.runtime.service import Runtime
from tests.features.discord.discord_server import ANN, GUILD, TOKEN, DiscordServer
from tests.runtime.conftest import options, start_runtime

__all__ = ["options", "start_runtime"]


async def identify_at_once(client: Client, shard: int | None, *, initial: bool = False) -> None:
    """Do not wait; the library waits five seconds before every connection but the first."""


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DiscordServer]:
    monkeypatch.setattr(Route, "BASE", Route.BASE)
    monkeypatch.setattr(DiscordWebSocket, "DEFAULT_GATEWAY", DiscordWebSocket.DEFAULT_GATEWAY)
    monkeypatch.setattr(Client, "before_identify_hook", identify_at_once)
    playing = DiscordServer()
    await playing.start()
    yield playing
    await playing.stop()


@pytest.fixture
def garden(transactional_db: None, tmp_path: Path) -> Workspace:
    """Return a workspace that ann owns."""
    root = tmp_path / "garden"
    root.mkdir()
    return create_workspace(
        root=root, name="Garden", slug="garden", owner=User.objects.create_user("ann")
    )


RULES = DiscordRules(guilds=frozenset({GUILD}), people={ANN: "ann"}, everybody=True)


class SettledBot(Bot):
    """A bot whose ``is_settled`` is true once it knows all places."""

    is_settled = False

    async def on_ready(self) -> None:
        await super().on_ready()
        self.is_settled = True


class Club:
    """A bot and its server. Further bots can be started on the same data."""

    def __init__(
        self,
        server: DiscordServer,
        garden: Workspace,
        start: Callable[..., Awaitable[Runtime]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.server = server
        self.garden = garden
        self._settings = {
            "edit_seconds": 0.05,
            "api": f"{server.url}/api/v10",
            "gateway": server.gateway_url,
        }
        self._monkeypatch = monkeypatch
        self._start = start
        self._tasks: list[asyncio.Task[None]] = []
        self.bots: list[Bot] = []

    async def open(self, *, rules: DiscordRules = RULES, **changes: Any) -> Bot:
        for name, value in (self._settings | changes).items():
            self._monkeypatch.setattr(settings.LOOM, f"discord_{name}", value)
        use_addresses()
        self.runtime: Runtime = await self._start(supervise=False)
        bot = SettledBot(self.runtime, self.garden, rules, guild_ready_timeout=0.05)
        self._tasks.append(asyncio.create_task(bot.start(TOKEN)))
        self.bots.append(bot)
        async with asyncio.timeout(60):
            while not bot.is_settled and not self._tasks[-1].done():
                await asyncio.sleep(0.01)
        return bot

    async def shut_down(self) -> None:
        """End the process: its bot, then its runtime."""
        bot = self.bots.pop()
        await bot.pause(seconds=5)
        await bot.close()
        await self._tasks.pop()
        await self.runtime.stop()

    async def close(self) -> None:
        while self.bots:
            await self.shut_down()

    @property
    def is_busy(self) -> bool:
        return any(bot.is_busy for bot in self.bots)

    async def until(self, condition: Callable[[], Any], *, seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)
                for task in self._tasks:
                    assert not task.done() or task.result() is None

    async def sessions(self) -> list[Session]:
        return await sync_to_async(lambda: list(Session.objects.order_by("pk")))()


@pytest.fixture
async def club(
    server: DiscordServer,
    garden: Workspace,
    start_runtime: Callable[..., Awaitable[Runtime]],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Club]:
    monkeypatch.setattr(posting, "FIRST_WAIT_SECONDS", 0.1)
    made = Club(server, garden, start_runtime, monkeypatch)
    yield made
    await made.close()
