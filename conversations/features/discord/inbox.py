"""The inboxes of places, which handle the messages of each place in order.

A place is behind if messages may have been missed there: the messages after the last handled one
are read before a new one is handled. After a lost connection Discord sends missed messages itself
if it can resume the connection. If it cannot, and whenever a process starts, all places are behind.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import discord
from discord.utils import time_snowflake
from django.contrib.auth.models import User

from conversations.access import AccessContext, get_session_for, get_workspace_for
from conversations.archive.attachments import save_attachment
from conversations.archive.file_types import check_size, examine
from conversations.archive.rights import WRITE
from conversations.archive.sessions import get_or_create_by_key
from conversations.archive.workspaces import find_user, owner_of
from conversations.domain.errors import LoomError
from conversations.domain.text import one_line
from conversations.models import Session, Workspace
from conversations.runtime.service import Runtime

from .models import ChannelPlace
from .options import CHANNEL, DiscordRules, MessageLocation
from .posting import is_transient, retry_until_done
from .service import list_places, mark_place

logger = logging.getLogger(__name__)

REST_SECONDS = 5.0  # At shutdown, for messages that are being handled.

MAX_REMEMBERED_MESSAGES = 200  # Handled messages that are remembered in each place.

type Handle = Callable[["PlaceInbox", discord.Message], Awaitable[None]]


@dataclass(eq=False)
class PlaceInbox:
    """The messages of one place.

    ``taken`` is the newest handled message. ``passed_by`` counts messages that were not for the
    bot."""

    channel: discord.PartialMessageable
    location: MessageLocation
    key: str
    taken: int
    is_behind: bool
    handle: Handle
    passed_by: int = 0
    _recent: deque[int] = field(default_factory=partial(deque[int], maxlen=MAX_REMEMBERED_MESSAGES))
    _waiting: asyncio.Queue[discord.Message | None] = field(default_factory=asyncio.Queue)
    _task: asyncio.Task[None] | None = None
    _closed: bool = False

    def put(self, message: discord.Message) -> None:
        self._waiting.put_nowait(message)
        self._begin()

    def catch_up(self) -> None:
        """Read the messages that may have been missed."""
        self.is_behind = True
        self._waiting.put_nowait(None)
        self._begin()

    @property
    def is_idle(self) -> bool:
        return self._task is None or self._task.done()

    def close(self) -> asyncio.Task[None] | None:
        """Drop waiting messages, which the next process reads.

        Return the task that ends after the current message, or None."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._closed = True
        return self._task

    def _begin(self) -> None:
        if not self._closed and self.is_idle:
            self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while not self._waiting.empty() and not self._closed:
            message = self._waiting.get_nowait()
            if self.is_behind:
                await self._retry(self._read_missed)
            if message is not None:
                # Handling it moves the mark past messages that could not be read.
                self.is_behind = False
                await self._handle(message)

    async def _read_missed(self) -> None:
        try:
            history = self.channel.history(
                limit=None, after=discord.Object(self.taken), oldest_first=True
            )
            async for message in history:
                await self._handle(message)
        except (discord.Forbidden, discord.NotFound) as error:
            logger.info("discord_place_closed", extra={"fields": {"reason": str(error)}})
            return  # The place stays behind, so the next message causes another attempt.
        self.is_behind = False

    async def _handle(self, message: discord.Message) -> None:
        if message.id in self._recent:
            return
        if await self._retry(partial(self.handle, self, message)):
            self._recent.append(message.id)
            self.taken = max(self.taken, message.id)

    async def _retry(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do the work until it succeeds. Return False if the inbox is closed before."""

        async def run() -> bool:
            await work()
            return True

        try:
            # A transient error never skips a message.
            return await retry_until_done(run, is_over=lambda: self._closed) is not None
        except Exception:
            # Any other error skips only this message.
            logger.exception("discord_message_failed", extra={"fields": {"key": self.key}})
            return True


# Reading one Discord message: its text, its files and its session.

MAX_NAME_CHARS = 60

# Types of messages that people write. All others are notices of Discord.
TAKEN_TYPES = (discord.MessageType.default, discord.MessageType.reply)


def is_from_a_person(message: discord.Message) -> bool:
    return not message.author.bot and message.webhook_id is None and message.type in TAKEN_TYPES


def mentions(message: discord.Message, bot: discord.abc.User) -> bool:
    return any(person.id == bot.id for person in message.mentions)


def is_addressed(message: discord.Message, bot: discord.abc.User) -> bool:
    """Return whether the message mentions the bot or replies to one of its messages."""
    if mentions(message, bot):
        return True
    replied_to = message.reference.resolved if message.reference else None
    return isinstance(replied_to, discord.Message) and replied_to.author.id == bot.id


def text_of(message: discord.Message, bot: discord.abc.User) -> str:
    """Return the text with mentions as names, without a mention of the bot at its beginning."""
    opening = re.compile(rf"\s*<@!?{bot.id}>[\s,:]*")
    text = opening.sub("", message.content, count=1) if opening.match(message.content) else None
    if text is None:
        return message.clean_content.strip()
    names = {str(person.id): person.display_name for person in message.mentions}
    return re.sub(r"<@!?(\d+)>", lambda m: f"@{names.get(m[1], m[1])}", text).strip()


def name_of(author: discord.abc.User) -> str:
    """Return the author's name in a form that can be followed by a colon."""
    plain = re.sub(r"[:\n\r]", " ", author.display_name)
    return one_line(plain, limit=MAX_NAME_CHARS) or str(author.id)


def account_for(name: str, workspace: Workspace) -> User:
    """Return the account with this username, or the workspace's owner for "". Raise Rejected."""
    return find_user(name) if name else owner_of(workspace)


def access_context_for(account: User, key: str) -> AccessContext:
    return AccessContext(user=account, action="", place=key, address="", agent=CHANNEL)


def open_place_session(account: User, owner: User, *, slug: str, key: str) -> Session:
    """Return the session of a place. Create it for ``owner`` on first use.

    Raise NotFound or NotPermitted unless the account may write in the workspace."""
    workspace, _ = get_workspace_for(access_context_for(account, key), slug, to=WRITE)
    session = get_or_create_by_key(workspace, key=key, owner=owner, channel=CHANNEL)
    checked_session, _ = get_session_for(access_context_for(account, key), session.uuid, to=WRITE)
    return checked_session


async def attach_files(
    runtime: Runtime, session: Session, files: Sequence[discord.Attachment], *, user_pk: int
) -> tuple[list[str], list[str]]:
    """Save the files of a message.

    Return the uuids of the saved attachments, and an error message for each other file."""
    saved: list[str] = []
    refused: list[str] = []
    for file in files:
        try:
            check_size(file.size, file.filename)
            data = await file.read()
            content = await runtime.readers.read(examine, data, file.filename)
            attachment = await runtime.writer.write(
                save_attachment,
                session.pk,
                data=data,
                name=file.filename,
                user_pk=user_pk,
                content=content,
            )
            saved.append(str(attachment.uuid))
        except LoomError as error:
            refused.append(error.message)
        except discord.HTTPException as error:
            if is_transient(error):
                raise
            refused.append(f"{file.filename} could not be fetched from Discord.")
    return saved, refused


class PlaceInboxes:
    """The inboxes of all places that the bot knows."""

    def __init__(
        self,
        client: discord.Client,
        runtime: Runtime,
        workspace: Workspace,
        rules: DiscordRules,
        *,
        handle: Handle,
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._workspace = workspace
        self._rules = rules
        self._handle = handle
        self._inboxes: dict[int, PlaceInbox] = {}
        self._marks: dict[str, int] = {}
        self._newest = 0
        self._finding = asyncio.Lock()

    async def load(self) -> None:
        """Load the places that earlier processes saved. All of them are behind."""
        for place in await self._runtime.readers.read(list_places, self._workspace):
            self._marks[place.key] = place.taken
            location = MessageLocation(
                channel=place.address, guild=place.guild, parent=place.parent
            )
            self._add(location, place.key, taken=place.taken, is_behind=True)

    def catch_up(self) -> None:
        """Read the messages that may have been missed in all places."""
        self._newest = max(self._marks.values(), default=0)
        for inbox in self._inboxes.values():
            inbox.catch_up()

    @property
    def are_busy(self) -> bool:
        return not all(inbox.is_idle for inbox in self._inboxes.values())

    async def put(self, location: MessageLocation, message: discord.Message) -> None:
        """Add a new message to the inbox of its place."""
        inbox = self._inboxes.get(location.channel)
        if inbox is not None:
            inbox.put(message)
            return
        earlier = message.id - 1
        new_inbox = self._add(
            location, location.key(author=message.author.id), taken=earlier, is_behind=False
        )
        new_inbox.put(message)
        # If the process dies now, the next one continues from here.
        await self.mark(new_inbox, earlier)

    async def find_location(self, channel: object, guild: discord.Guild | None) -> MessageLocation:
        assert isinstance(channel, discord.abc.Snowflake)
        # Requests are answered in the order in which they arrive, so messages keep their order.
        async with self._finding:
            inbox = self._inboxes.get(channel.id)
            if inbox is not None:
                return inbox.location
            if guild is None:
                return MessageLocation(channel=channel.id)
            if isinstance(channel, discord.abc.GuildChannel | discord.Thread):
                return location_of(channel)
            return location_of(await self._client.fetch_channel(channel.id))

    async def add_guild(self, guild: discord.Guild) -> None:
        """Save a mark at the last message of each open channel and thread that is not known yet.

        Messages written there later are found even if the bot was offline."""
        channels: list[discord.TextChannel | discord.VoiceChannel | discord.Thread]
        channels = [*guild.text_channels, *guild.voice_channels, *guild.threads]
        joined_at = guild.me.joined_at if guild.me else None
        joined = time_snowflake(joined_at) if joined_at else 0
        for channel in channels:
            location = location_of(channel)
            if location.channel not in self._inboxes and self._rules.is_open(location):
                last = channel.last_message_id or channel.id
                await self._add_new(location, location.key(author=0), last=last, joined=joined)

    async def add_people(self) -> None:
        """Save a mark at the last direct message with each allowed person without a known place."""
        known_keys = {inbox.key for inbox in self._inboxes.values()}
        for person in self._rules.people:
            key = MessageLocation(channel=0).key(author=person)
            if key in known_keys:
                continue
            try:
                channel = await self._client.create_dm(discord.Object(person))
                last = [message.id async for message in channel.history(limit=1)]
            except discord.HTTPException as error:
                logger.info("discord_person_not_reached", extra={"fields": {"reason": str(error)}})
                continue
            await self._add_new(
                MessageLocation(channel=channel.id), key, last=max([channel.id, *last])
            )

    async def _add_new(
        self, location: MessageLocation, key: str, *, last: int, joined: int = 0
    ) -> None:
        # A place that is newer than all handled messages was created while the bot was offline, so
        # all its messages since the bot joined were missed.
        is_younger = 0 < self._newest < location.channel
        taken = max(location.channel, joined) if is_younger else last
        inbox = self._add(location, key, taken=taken, is_behind=is_younger)
        await self.mark(inbox, taken)
        if is_younger:
            inbox.catch_up()

    def _add(
        self, location: MessageLocation, key: str, *, taken: int, is_behind: bool
    ) -> PlaceInbox:
        inbox = self._inboxes[location.channel] = PlaceInbox(
            self._client.get_partial_messageable(location.channel, guild_id=location.guild),
            location,
            key,
            taken=taken,
            is_behind=is_behind,
            handle=self._handle,
        )
        return inbox

    def marked(self, inbox: PlaceInbox, message: int) -> ChannelPlace:
        """Return the mark for this message, which the caller must save."""
        self._marks[inbox.key] = message
        return ChannelPlace(
            workspace=self._workspace,
            key=inbox.key,
            address=inbox.location.channel,
            guild=inbox.location.guild,
            parent=inbox.location.parent,
            taken=message,
        )

    async def mark(self, inbox: PlaceInbox, message: int) -> None:
        await self._runtime.writer.write(mark_place, self.marked(inbox, message))

    async def close(self) -> None:
        """Stop handling messages, and save how far each place was read."""
        inboxes = list(self._inboxes.values())
        tasks = [task for inbox in inboxes if (task := inbox.close()) is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=REST_SECONDS)
            for task in late:
                task.cancel()
        for inbox in inboxes:
            if inbox.taken > self._marks.get(inbox.key, inbox.taken):
                await self.mark(inbox, inbox.taken)


def location_of(channel: object) -> MessageLocation:
    if isinstance(channel, discord.Thread):
        return MessageLocation(channel=channel.id, guild=channel.guild.id, parent=channel.parent_id)
    if isinstance(channel, discord.abc.GuildChannel):
        return MessageLocation(channel=channel.id, guild=channel.guild.id)
    assert isinstance(channel, discord.abc.Snowflake)
    return MessageLocation(channel=channel.id)
