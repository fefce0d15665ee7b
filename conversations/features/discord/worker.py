"""The bot in a process of its own, on the data that the server works on too.

Only one such process works on a data folder: two would answer the same messages, and
though each would find that the other has, both would edit.
"""

import asyncio
import fcntl
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import discord
import yarl
from discord import app_commands
from discord.gateway import DiscordWebSocket
from discord.http import Route

from conversations.domain.errors import Conflict, Unavailable
from conversations.runtime.options import RuntimeOptions
from conversations.runtime.service import Runtime

from .handler import COMMANDS, MessageHandler
from .inbox import Places, is_from_a_person
from .options import DiscordOptions, DiscordRules
from .posting import keep_trying
from .replies import Replies
from .service import open_replies

# What the gateway tells, passed on.


logger = logging.getLogger(__name__)

discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False


class Bot(discord.Client):
    """One connection to Discord, for one workspace. ``is_settled``: it knows all places."""

    def __init__(self, runtime: Runtime, options: DiscordOptions, **more: Any) -> None:
        super().__init__(
            intents=_intents(options.rules),
            allowed_mentions=discord.AllowedMentions.none(),
            chunk_guilds_at_startup=False,
            member_cache_flags=discord.MemberCacheFlags.none(),
            max_messages=None,
            **more,
        )
        self._runtime = runtime
        self._options = options
        self._replies = Replies(self, runtime, options)
        self._desk = MessageHandler(self, runtime, options, self._replies)
        self._places = self._desk.places = Places(self, runtime, options, take=self._desk.take)
        self._tree = _make_tree(self, self._desk)
        self.is_settled = False

    async def setup_hook(self) -> None:
        """Signed in, not connected yet: go on with what an earlier process has left."""
        await self._places.load()
        for record in await self._runtime.readers.read(open_replies, self._options.workspace):
            self._replies.follow(record, is_left_over=True)
        try:
            await self._tree.sync()
        except discord.HTTPException as error:
            logger.warning(
                "discord_commands_not_published", extra={"fields": {"reason": str(error)}}
            )

    async def on_connect(self) -> None:
        """A new connection, of which Discord knows nothing that was missed before. (One
        that is resumed gets what it has missed.)"""
        self._places.catch_up()

    async def on_ready(self) -> None:
        fields = {"bot": str(self.user), "guilds": len(self.guilds)}
        logger.info("discord_ready", extra={"fields": fields})
        for guild in self.guilds:
            await self._places.know_guild(guild)
        await self._places.know_people()
        self.is_settled = True

    async def on_guild_join(self, guild: discord.Guild) -> None:
        await self._places.know_guild(guild)

    async def on_guild_available(self, guild: discord.Guild) -> None:
        await self._places.know_guild(guild)

    async def on_guild_channel_create(self, channel: discord.abc.GuildChannel) -> None:
        await self._places.know_guild(channel.guild)

    async def on_thread_create(self, thread: discord.Thread) -> None:
        await self._places.know_guild(thread.guild)

    async def on_message(self, message: discord.Message) -> None:
        if not is_from_a_person(message):
            return
        spot = await keep_trying(partial(self._places.find_spot, message.channel, message.guild))
        assert spot is not None
        if self._options.rules.lets_in(message.author.id, spot):
            await self._places.put(spot, message)

    async def on_interaction(self, interaction: discord.Interaction) -> None:
        if interaction.type is discord.InteractionType.component:
            await self._desk.press(interaction)

    @property
    def is_busy(self) -> bool:
        """A message is being dealt with, or an answer shown."""
        return self._places.are_busy or self._replies.are_open

    async def rest(self, *, seconds: float) -> None:
        """Take nothing more; stop what is being written, and show that, for so long."""
        await self._places.close()
        await self._runtime.end_runs()
        await self._replies.end(seconds=seconds)


def _intents(rules: DiscordRules) -> discord.Intents:
    """What Discord tells about. To read what is not addressed to it, a bot needs a
    permission of Discord's own."""
    intents = discord.Intents.none()
    intents.guilds = intents.guild_messages = intents.dm_messages = True
    intents.message_content = not rules.mentions_only
    return intents


def _make_tree(bot: Bot, desk: MessageHandler) -> app_commands.CommandTree[Bot]:
    """The commands for Discord's list."""
    tree: app_commands.CommandTree[Bot] = app_commands.CommandTree(bot)
    for name, says in COMMANDS.items():

        def carry_out(name: str = name) -> Any:
            async def callback(interaction: discord.Interaction) -> None:
                await desk.choose(interaction, name)

            return callback

        tree.add_command(app_commands.Command(name=name, description=says, callback=carry_out()))
    return tree


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
            raise Conflict("Another process already runs the bot on this data.") from error
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
