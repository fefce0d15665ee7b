"""The Discord bot, which runs in a process of its own on the server's data folder."""

import asyncio
import fcntl
import logging
import signal
from functools import partial
from typing import Any

import aiohttp
import discord
import yarl
from discord import app_commands
from discord.gateway import DiscordWebSocket
from discord.http import Route
from django.conf import settings

from conversations.domain.errors import Conflict, Unavailable
from conversations.models import Workspace
from conversations.runtime.options import RuntimeOptions
from conversations.runtime.service import Runtime

from .handler import COMMANDS, MessageHandler
from .inbox import PlaceInboxes, is_from_a_person
from .options import DiscordRules
from .posting import retry_until_done
from .replies import ReplyTasks
from .service import open_replies

logger = logging.getLogger(__name__)

discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False


class Bot(discord.Client):
    """One connection to Discord, for one workspace."""

    def __init__(
        self, runtime: Runtime, workspace: Workspace, rules: DiscordRules, **more: Any
    ) -> None:
        intents = discord.Intents.none()
        intents.guilds = intents.guild_messages = intents.dm_messages = True
        # A bot needs this privileged intent to read messages that do not mention it.
        intents.message_content = not rules.mentions_only
        super().__init__(
            intents=intents,
            allowed_mentions=discord.AllowedMentions.none(),
            chunk_guilds_at_startup=False,
            member_cache_flags=discord.MemberCacheFlags.none(),
            max_messages=None,
            **more,
        )
        self._runtime = runtime
        self._workspace = workspace
        self._rules = rules
        self._replies = ReplyTasks(self, runtime)
        self._handler = MessageHandler(self, runtime, workspace, rules, self._replies)
        self._places = self._handler.places = PlaceInboxes(
            self, runtime, workspace, rules, handle=self._handler.handle
        )
        # The commands in Discord's list.
        self._tree: app_commands.CommandTree[Bot] = app_commands.CommandTree(self)
        for name, says in COMMANDS.items():
            callback: Any = self._handler.on_chosen(name)
            self._tree.add_command(
                app_commands.Command(name=name, description=says, callback=callback)
            )

    async def setup_hook(self) -> None:
        """Continue an earlier process's replies, after signing in and before connecting."""
        await self._places.load()
        for record in await self._runtime.readers.read(open_replies, self._workspace):
            self._replies.follow(record, is_left_over=True)
        try:
            await self._tree.sync()
        except (discord.HTTPException, aiohttp.ClientError, OSError) as error:
            logger.warning(
                "discord_commands_not_published", extra={"fields": {"reason": str(error)}}
            )

    async def on_connect(self) -> None:
        # Discord does not send missed messages to a new connection, only to one that is resumed.
        self._places.catch_up()

    async def on_ready(self) -> None:
        fields = {"bot": str(self.user), "guilds": len(self.guilds)}
        logger.info("discord_ready", extra={"fields": fields})
        for guild in self.guilds:
            await self._places.add_guild(guild)
        await self._places.add_people()

    async def on_guild_join(self, guild: discord.Guild) -> None:
        await self._places.add_guild(guild)

    on_guild_available = on_guild_join

    async def on_guild_channel_create(self, channel: discord.abc.GuildChannel) -> None:
        await self._places.add_guild(channel.guild)

    async def on_thread_create(self, thread: discord.Thread) -> None:
        await self._places.add_guild(thread.guild)

    async def on_message(self, message: discord.Message) -> None:
        if not is_from_a_person(message):
            return
        location = await retry_until_done(
            partial(self._places.find_location, message.channel, message.guild)
        )
        assert location is not None
        if self._rules.admits(message.author.id, location):
            await self._places.put(location, message)

    async def on_interaction(self, interaction: discord.Interaction) -> None:
        if interaction.type is discord.InteractionType.component:
            await self._handler.handle_button(interaction)

    @property
    def is_busy(self) -> bool:
        """Whether a message is being handled or an answer shown."""
        return self._places.are_busy or self._replies.are_open

    async def pause(self, *, seconds: float) -> None:
        """Handle no more messages, end all runs, and finish their replies within ``seconds``."""
        await self._places.close()
        await self._runtime.end_runs()
        await self._replies.end(seconds=seconds)


REST_SECONDS = 10.0

BAD_TOKEN = 4004  # The code with which Discord closes a connection whose token is invalid.


async def serve(workspace: Workspace, rules: DiscordRules, runtime_options: RuntimeOptions) -> None:
    """Run the bot until SIGINT or SIGTERM.

    Raise Unavailable if Discord rejects the bot, and Conflict if another process runs the bot on
    this data folder."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stopping.set)
    with (runtime_options.data_dir / "discord.lock").open("w") as lock:
        try:
            # Two bots would handle the same messages. Each would find the other's runs and replies,
            # but both would edit them.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict("Another process already runs the bot on this data.") from error
        runtime = Runtime(runtime_options)
        await runtime.start()
        try:
            use_addresses()
            stopped = asyncio.create_task(stopping.wait())
            # Retry signing in, because a machine may start before its network does.
            signing_in = asyncio.create_task(
                retry_until_done(partial(_sign_in, runtime, workspace, rules))
            )
            await asyncio.wait({signing_in, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not signing_in.done():
                signing_in.cancel()
                await asyncio.gather(signing_in, return_exceptions=True)
                return
            bot = await signing_in
            assert bot is not None
            connected = asyncio.create_task(_connect(bot))
            await asyncio.wait({connected, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not connected.done():
                await bot.pause(seconds=REST_SECONDS)
            await bot.close()
            await connected
        except (discord.LoginFailure, discord.ConnectionClosed) as error:
            if isinstance(error, discord.ConnectionClosed) and error.code != BAD_TOKEN:
                raise
            raise Unavailable("Discord rejected this token.") from error
        except discord.PrivilegedIntentsRequired as error:
            raise Unavailable(
                "To answer messages that do not mention it, the bot needs the Message Content "
                "intent: turn it on in Discord's developer portal, or set "
                "LOOM_DISCORD_ANSWER=mentions."
            ) from error
        finally:
            await runtime.stop()


async def _sign_in(runtime: Runtime, workspace: Workspace, rules: DiscordRules) -> Bot:
    bot = Bot(runtime, workspace, rules)
    try:
        await bot.login(settings.LOOM.discord_token)
    except BaseException:
        await bot.close()  # a client cannot log in a second time
        raise
    return bot


async def _connect(bot: Bot) -> None:
    """Connect the bot, and keep it connected until it is closed."""
    while True:
        try:
            return await bot.connect()
        except AttributeError as error:
            # After a failure, the library waits and then resumes the connection. If the first one
            # fails, there is none to resume. Any other error would come again at once.
            if error.name != "sequence":
                raise


def use_addresses() -> None:
    """Use a proxy's URLs instead of Discord's if they are set."""
    loom = settings.LOOM
    if loom.discord_api:
        Route.BASE = loom.discord_api.rstrip("/")
    if loom.discord_gateway:
        DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(loom.discord_gateway)
