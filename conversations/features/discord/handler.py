"""Handling one message, one command or one button."""

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

import discord
from django.conf import settings
from django.contrib.auth.models import User

from conversations.access import get_session_for
from conversations.archive.messages import AcceptedMessage
from conversations.archive.rights import WRITE
from conversations.archive.sessions import begin_anew
from conversations.archive.turns import walk_active_turns_back
from conversations.domain.errors import Conflict, LoomError, NotFound, NotPermitted, Rejected
from conversations.domain.text import load_json, one_line, strip_marks
from conversations.domain.tool_calls import ALWAYS, DENY, ONCE
from conversations.models import Session, Workspace
from conversations.runtime.service import Runtime

from . import inbox
from .inbox import PlaceInbox, PlaceInboxes
from .message_parts import MAX_MESSAGE_UNITS, size_of
from .models import ChannelPlace
from .options import CHANNEL, DiscordRules, MessageLocation
from .posting import escape, is_transient
from .replies import ReplyTasks
from .service import is_answering, record_taken, shows_last_message

logger = logging.getLogger(__name__)

# The bot's commands with descriptions. People type them or choose them from Discord's list.
COMMANDS = {
    "new": "Start a new session here; the earlier one stays in the archive",
    "history": "Show the latest messages of this session",
    "stop": "Stop the running answer",
    "help": "Show these commands",
}

MAX_SHOWN_TURNS = 10
MAX_SHOWN_CHARS = 300

BEGUN_BY = "begun_by"  # The key in a session's metadata for the message that began it.

MESSAGES_PER_SAVE = 100  # After as many messages that are not for the bot, the mark is saved.

DECISIONS = {"once": ONCE, "always": ALWAYS, "deny": DENY}

_MARKS = {"user": "▸", "assistant": "◂"}


def begin_new_session(session: Session, *, message: int) -> None:
    """Begin a new session under the same key, once for each message that asks for it.

    A session without turns is kept, because it is as good as a new one."""
    is_begun = load_json(session.metadata, default={}).get(BEGUN_BY) == str(message)
    if session.turn_count and session.key and not is_begun:
        begin_anew(
            session.workspace,
            key=session.key,
            owner=session.owner,
            channel=CHANNEL,
            metadata={BEGUN_BY: str(message)},
        )


def describe_history(session: Session) -> str:
    """Return the session's last messages, oldest first."""
    walk = walk_active_turns_back(session.pk, has_rewinds=session.rewind_count > 0, page=50)
    turns_with_text = (turn for turn in walk if turn.role in _MARKS and turn.content.strip())
    lines: list[str] = []
    for turn in islice(turns_with_text, MAX_SHOWN_TURNS):
        text = one_line(strip_marks(turn.content), limit=MAX_SHOWN_CHARS)
        line = f"{_MARKS[turn.role]} {escape(text, limit=MAX_SHOWN_CHARS)}"
        if size_of("\n".join([line, *lines])) > MAX_MESSAGE_UNITS:
            break
        lines.insert(0, line)
    return "\n".join(lines) or "This session has no messages yet."


class MessageHandler:
    """The handler of messages, commands and buttons. ``places`` must be set before it is used."""

    places: PlaceInboxes

    def __init__(
        self,
        client: discord.Client,
        runtime: Runtime,
        workspace: Workspace,
        rules: DiscordRules,
        replies: ReplyTasks,
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._rules = rules
        self._workspace = workspace
        self._replies = replies

    async def handle(self, place: PlaceInbox, message: discord.Message) -> None:
        """Handle one message of a place. Handling it again changes nothing."""
        location, rules = place.location, self._rules
        is_heard = inbox.is_from_a_person(message) and rules.admits(message.author.id, location)
        is_meant = (
            location.guild is None
            or not rules.mentions_only
            or inbox.is_addressed(message, self._bot)
        )
        if not (is_heard and is_meant):
            place.passed_by += 1
            if place.passed_by % MESSAGES_PER_SAVE == 0:
                await self.places.mark(place, message.id)
            return
        try:
            reply = await self._handle(place, message)
        except LoomError as error:
            if is_transient(error):
                raise
            reply = error.message
        if reply:
            await self._reply(place, message, reply)
            await self.places.mark(place, message.id)

    @property
    def _bot(self) -> discord.ClientUser:
        assert self._client.user is not None
        return self._client.user

    async def _handle(self, place: PlaceInbox, message: discord.Message) -> str:
        """Handle a message for the bot.

        Return the bot's own reply, or "" if the message was sent to the model."""
        author, location = message.author, place.location
        text = inbox.text_of(message, self._bot)
        command = text.strip().lower().removeprefix("/")
        if text.strip().startswith("/") and command in COMMANDS and not message.attachments:
            return await self.execute(command, location, author=author.id, by=message.id)
        account = await self._account_of(author.id)
        session = await self._open_session(location, account, author=author.id)
        attachments, refused = await inbox.attach_files(
            self._runtime, session, message.attachments, user_pk=account.pk
        )
        if not text and not attachments:
            return "\n".join(refused) or self._describe_empty(message)
        accepted = await self._runtime.send(
            session,
            client_id=f"{CHANNEL}-{message.id}",
            # If several people write, the text begins with the author's name, as the archive's
            # search and the model expect.
            text=text if location.guild is None else f"{inbox.name_of(author)}: {text}".rstrip(),
            user_pk=account.pk,
            attachments=attachments,
        )
        mark = self.places.marked(place, message.id)
        await self._show_run(accepted, location.channel, message.id, author, mark=mark)
        if refused:
            await self._reply(place, message, "\n".join(refused))
        return ""

    def _describe_empty(self, message: discord.Message) -> str:
        is_read = self._client.intents.message_content or inbox.mentions(message, self._bot)
        if message.guild is None or is_read:
            return "This message has no text."
        return (
            "Discord does not show me what a reply without a mention says. Send it again with the "
            "mention turned on."
        )

    async def _show_run(
        self,
        accepted: AcceptedMessage,
        address: int,
        message: int,
        author: discord.abc.User,
        *,
        mark: ChannelPlace | None = None,
    ) -> None:
        """Record which run the message, or a button of it, started, and show the run's answer."""
        reply = await self._runtime.writer.write(
            record_taken,
            accepted.run_pk,
            address=address,
            source=message,
            author=author.id,
            author_name=inbox.name_of(author),
            mark=mark,
        )
        self._replies.follow(reply, is_left_over=mark is not None and not accepted.is_new)

    async def _reply(self, place: PlaceInbox, message: discord.Message, text: str) -> None:
        try:
            await place.channel.send(
                text,
                nonce=f"m{message.id}",
                reference=discord.MessageReference.from_message(message, fail_if_not_exists=False),
                suppress_embeds=True,
                mention_author=False,
            )
        except discord.HTTPException as error:
            if is_transient(error):
                raise
            logger.warning("discord_message_refused", extra={"fields": {"reason": str(error)}})

    async def _account_of(self, person: int | None) -> User:
        """Return the account of a person, or the bot's account if they have none.

        Raise NotPermitted if the account is closed or does not exist."""
        name = self._rules.account_of(person) or settings.LOOM.discord_account
        try:
            return await self._runtime.readers.read(inbox.account_for, name, self._workspace)
        except Rejected as error:
            raise self._refusal(person, error) from error

    def _refusal(self, person: int | None, error: LoomError) -> NotPermitted:
        logger.warning("discord_account_refused", extra={"fields": {"reason": error.message}})
        if self._rules.account_of(person):
            return NotPermitted("Your account may not write in the bot's workspace.")
        return NotPermitted("The bot's account may not write in its workspace.")

    async def _open_session(
        self, location: MessageLocation, account: User, *, author: int
    ) -> Session:
        owner = account
        if location.guild is not None:
            # A direct message's session is owned by its author. Other sessions have several
            # authors, and are owned by the bot's account.
            owner = await self._account_of(None)
        key, slug = location.key(author=author), self._workspace.slug
        try:
            return await self._runtime.writer.write(
                inbox.open_place_session, account, owner, slug=slug, key=key
            )
        except (NotFound, NotPermitted) as error:
            raise self._refusal(author, error) from error

    def on_chosen(self, command: str) -> Callable[[discord.Interaction], Coroutine[Any, Any, None]]:
        """Return the callback for a command that is chosen from Discord's list."""

        async def answer(interaction: discord.Interaction) -> str:
            location = await self.places.find_location(interaction.channel, interaction.guild)
            person = interaction.user.id
            if not self._rules.admits(person, location):
                return "You are not allowed to use this bot here."
            return await self.execute(command, location, author=person, by=interaction.id)

        async def choose(interaction: discord.Interaction) -> None:
            await interaction.response.defer(ephemeral=command != "new")
            await _respond(interaction, answer(interaction))

        return choose

    async def execute(
        self, command: str, location: MessageLocation, *, author: int, by: int
    ) -> str:
        """Execute a command and return the bot's reply. Raise LoomError.

        ``by`` is the id of the message or interaction that asked for it."""
        if command == "help":
            return "\n".join(f"`/{name}` {says}" for name, says in COMMANDS.items())
        account = await self._account_of(author)
        session = await self._open_session(location, account, author=author)
        if command == "history":
            return await self._runtime.readers.read(describe_history, session)
        was_running = await self._runtime.readers.read(is_answering, session.pk)
        if was_running:
            await self._runtime.stop_run(session)
        if command == "stop":
            return "Stopped." if was_running else "No answer is running."
        await self._runtime.writer.write(begin_new_session, session, message=by)
        return "New session started. The earlier one stays in the archive."

    async def handle_button(self, interaction: discord.Interaction) -> None:
        """Handle a pressed button. The message with the button shows the outcome later."""
        data: dict[str, Any] = dict(interaction.data or {})
        name = str(data.get("custom_id", "")).split(":")
        if len(name) == 4 and name[0] == "loom":
            await interaction.response.defer()
            await _respond(interaction, self._execute_button(interaction, *name[1:]))

    async def _execute_button(
        self, interaction: discord.Interaction, act: str, session: str, call: str
    ) -> str:
        if not self._rules.account_of(interaction.user.id):
            return "Only people whose account is listed in the bot's settings can decide this."
        runtime, message = self._runtime, interaction.message
        account = await self._account_of(interaction.user.id)
        find = partial(get_session_for, to=WRITE)
        opened_session, _ = await runtime.readers.read(
            find, inbox.access_context_for(account, CHANNEL), UUID(session)
        )
        if act in DECISIONS:
            await runtime.decide_call(
                opened_session, call=UUID(call), decision=DECISIONS[act], user_pk=account.pk
            )
            return ""
        assert message is not None
        if not await runtime.readers.read(shows_last_message, opened_session.pk, message.id):
            raise Conflict("The conversation has continued since then.")
        regenerate = partial(runtime.regenerate, turn=None)
        execute = regenerate if act == "retry" else runtime.continue_run
        accepted = await execute(
            opened_session, client_id=f"{CHANNEL}-{message.id}", user_pk=account.pk
        )
        await self._show_run(accepted, message.channel.id, message.id, interaction.user)
        await interaction.edit_original_response(view=None)
        return ""


async def _respond(interaction: discord.Interaction, work: Coroutine[None, None, str]) -> None:
    try:
        reply = await work
    except LoomError as error:
        reply = error.message
    except Exception:
        logger.exception("discord_interaction_failed")
        reply = "Something went wrong. See the server's log for the reason."
    if reply:
        await interaction.followup.send(reply, ephemeral=True, suppress_embeds=True)
