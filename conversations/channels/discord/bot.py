"""What the gateway tells, passed on."""

import logging
from functools import partial
from typing import Any

import discord
from discord import app_commands

from conversations.archive.channels import open_replies
from conversations.domain.discord_rules import DiscordRules
from conversations.runtime.engine import Runtime

from .commands import COMMANDS
from .desk import MessageHandler
from .options import DiscordOptions
from .places import Places
from .replies import Replies
from .taking import is_from_a_person
from .trying import keep_trying

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
            logger.warning("discord_commands_not_published: %s", error)

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
