"""The places that the bot knows, and how far each was read."""

import asyncio
import logging
from collections.abc import Iterable, Iterator

import discord

from conversations.archive.channels import PlaceMark, list_places, mark_place
from conversations.domain.discord_rules import Spot
from conversations.runtime.engine import Runtime

from .inbox import PlaceInbox, Take
from .options import DiscordOptions

logger = logging.getLogger(__name__)


class Places:
    def __init__(
        self, client: discord.Client, runtime: Runtime, options: DiscordOptions, *, take: Take
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._workspace = options.workspace
        self._rules = options.rules
        self._take = take
        self._inboxes: dict[int, PlaceInbox] = {}
        self._marks: dict[str, int] = {}
        self._newest = 0
        self._finding = asyncio.Lock()

    async def load(self) -> None:
        """Those of earlier processes. All are behind."""
        for mark in await self._runtime.readers.read(list_places, self._workspace):
            self._marks[mark.key] = mark.taken
            self._add(mark.spot, mark.key, taken=mark.taken, is_behind=True)

    def catch_up(self) -> None:
        """Something may have been missed, anywhere."""
        self._newest = max(self._marks.values(), default=0)
        for inbox in self._inboxes.values():
            inbox.catch_up()

    @property
    def are_busy(self) -> bool:
        return not all(inbox.is_idle for inbox in self._inboxes.values())

    async def put(self, spot: Spot, message: discord.Message) -> None:
        """Somebody has written something there. A place that is new is remembered at once:
        if the process dies now, the next one reads on from here."""
        known = self._inboxes.get(spot.channel)
        if known is not None:
            known.put(message)
            return
        earlier = message.id - 1
        inbox = self._add(spot, spot.key(author=message.author.id), taken=earlier, is_behind=False)
        inbox.put(message)
        await self.mark(inbox, earlier)

    async def find_spot(self, channel: object, guild: discord.Guild | None) -> Spot:
        """Where a channel is. Who asks first is answered first, so that messages keep
        their order."""
        assert isinstance(channel, discord.abc.Snowflake)
        async with self._finding:
            known = self._inboxes.get(channel.id)
            if known is not None:
                return known.spot
            if guild is None:
                return Spot(channel=channel.id)
            if isinstance(channel, discord.abc.GuildChannel | discord.Thread):
                return spot_in(channel)
            return spot_in(await self._client.fetch_channel(channel.id))

    async def know_guild(self, guild: discord.Guild) -> None:
        """Remember how far the open channels and threads have got, so that whatever is
        written there from now on is found after a time away."""
        channels: list[discord.TextChannel | discord.VoiceChannel | discord.Thread] = [
            *guild.text_channels,
            *guild.voice_channels,
            *guild.threads,
        ]
        for channel in channels:
            spot = spot_in(channel)
            if spot.channel not in self._inboxes and self._rules.is_open(spot):
                last = channel.last_message_id or channel.id
                await self._know(spot, spot.key(author=0), last=last)

    async def know_people(self) -> None:
        """The same for direct messages with the people who are let in."""
        known = {inbox.key for inbox in self._inboxes.values()}
        for person in self._rules.people:
            key = Spot(channel=0).key(author=person)
            if key in known:
                continue
            try:
                channel = await self._client.create_dm(discord.Object(person))
                last = [message.id async for message in channel.history(limit=1)]
            except discord.HTTPException as error:
                logger.info("discord_person_not_reached: %s", error)
                continue
            await self._know(Spot(channel=channel.id), key, last=max([channel.id, *last]))

    async def _know(self, spot: Spot, key: str, *, last: int) -> None:
        """A place that was not known. If it is younger than what is known of others, all
        that was said there came while nobody listened."""
        is_younger = 0 < self._newest < spot.channel
        taken = spot.channel if is_younger else last
        inbox = self._add(spot, key, taken=taken, is_behind=is_younger)
        await self.mark(inbox, taken)
        if is_younger:
            inbox.catch_up()

    def _add(self, spot: Spot, key: str, *, taken: int, is_behind: bool) -> PlaceInbox:
        inbox = self._inboxes[spot.channel] = PlaceInbox(
            self._client.get_partial_messageable(spot.channel, guild_id=spot.guild),
            spot=spot,
            key=key,
            taken=taken,
            is_behind=is_behind,
            take=self._take,
        )
        return inbox

    def marked(self, inbox: PlaceInbox, message: int) -> PlaceMark:
        """The mark up to this message, which the caller keeps."""
        self._marks[inbox.key] = message
        return PlaceMark(key=inbox.key, spot=inbox.spot, taken=message)

    async def mark(self, inbox: PlaceInbox, message: int) -> None:
        """Keep that the place was read up to this message."""
        mark = self.marked(inbox, message)
        await self._runtime.writer.write(mark_place, self._workspace.pk, mark)

    async def close(self) -> None:
        """Deal with nothing more, and keep how far that went."""
        for inbox in list(self._inboxes.values()):
            await inbox.close()
        for inbox in self._unmarked(self._inboxes.values()):
            await self.mark(inbox, inbox.taken)

    def _unmarked(self, inboxes: Iterable[PlaceInbox]) -> Iterator[PlaceInbox]:
        return (inbox for inbox in inboxes if inbox.taken > self._marks.get(inbox.key, inbox.taken))


def spot_in(channel: object) -> Spot:
    """Where a channel or thread of a server is."""
    if isinstance(channel, discord.Thread):
        return Spot(channel=channel.id, guild=channel.guild.id, parent=channel.parent_id)
    if isinstance(channel, discord.abc.GuildChannel):
        return Spot(channel=channel.id, guild=channel.guild.id)
    assert isinstance(channel, discord.abc.Snowflake)
    return Spot(channel=channel.id)
