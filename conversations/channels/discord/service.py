"""The bot in a process of its own, on the data that the server works on too.

Only one such process works on a data folder: two would answer the same messages, and
though each would find that the other has, both would edit.
"""

import asyncio
import fcntl
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import discord
import yarl
from discord.gateway import DiscordWebSocket
from discord.http import Route

from conversations.domain.errors import Conflict, Unavailable
from conversations.runtime.engine import Runtime
from conversations.runtime.options import RuntimeOptions

from .bot import Bot
from .options import DiscordOptions

REST_SECONDS = 10.0


async def serve(options: DiscordOptions, runtime_options: RuntimeOptions) -> None:
    """Answer until SIGINT or SIGTERM. Raises Unavailable where Discord lets the bot not
    in, Conflict when another process has this data folder."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stopping.set)
    with _only_one(runtime_options.data_dir):
        runtime = Runtime(runtime_options)
        await runtime.start()
        try:
            await _connect(runtime, options, stopping)
        finally:
            await runtime.stop()


@contextmanager
def _only_one(data_dir: Path) -> Iterator[None]:
    with (data_dir / "discord.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict("Another process runs the bot on this data already.") from error
        yield


async def _connect(runtime: Runtime, options: DiscordOptions, stopping: asyncio.Event) -> None:
    use_addresses(options)
    bot = Bot(runtime, options)
    connected = asyncio.create_task(bot.start(options.token))
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait({connected, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not connected.done():
        await bot.rest(seconds=REST_SECONDS)
    await bot.close()
    try:
        await connected
    except discord.LoginFailure as error:
        raise Unavailable("Discord does not know this token.") from error
    except discord.PrivilegedIntentsRequired as error:
        raise Unavailable(
            "To answer what does not mention it, the bot needs the Message Content intent: "
            "switch it on in Discord's developer portal, or set LOOM_DISCORD_ANSWER=mentions."
        ) from error


def use_addresses(options: DiscordOptions) -> None:
    """Talk to a proxy in the place of Discord's own addresses, where one is set."""
    if options.api:
        Route.BASE = options.api.rstrip("/")
    if options.gateway:
        DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(options.gateway)
