"""What is done about one message, one command, one button."""

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

import discord
from django.contrib.auth.models import User

from conversations.access import get_session_for
from conversations.archive.messages import Accepted
from conversations.archive.rights import WRITE
from conversations.archive.sessions import begin_anew
from conversations.archive.turns import walk_active_turns_back
from conversations.domain.errors import Conflict, LoomError, NotFound, NotPermitted
from conversations.domain.text import load_json, one_line, strip_marks
from conversations.domain.tool_calls import ALWAYS, DENY, ONCE
from conversations.models import Session
from conversations.runtime.service import Runtime

from .inbox import (
    PlaceInbox,
    Places,
    account_for,
    attach_files,
    is_addressed,
    is_from_a_person,
    name_of,
    open_place_session,
    text_of,
    visit_by,
    with_speaker,
)
from .message_parts import MESSAGE_LIMIT, size_of
from .options import CHANNEL, DiscordOptions, Spot
from .posting import escape
from .replies import Replies
from .service import ChannelMessageSource, record_taken, shows_last_message

# What people can ask of the bot itself, typed or chosen from Discord's list.


COMMANDS = {
    "new": "Start a new session here; the earlier one stays in the archive",
    "history": "Show what was said last in this session",
    "stop": "Stop the answer that is being written",
    "help": "Show these commands",
}

SHOWN_TURNS = 10
SHOWN_CHARS = 300

BEGUN_BY = "begun_by"
"""In a session's metadata: the message with which it was begun."""


def read_command(text: str) -> str | None:
    """The command that a message is, without anything else in it."""
    word = text.strip().lower()
    return word[1:] if word[:1] == "/" and word[1:] in COMMANDS else None


def describe_commands() -> str:
    return "\n".join(f"`/{name}` {says}" for name, says in COMMANDS.items())


def begin_in_place(session: Session, *, message: int) -> None:
    """Begin anew in the session's place, once for each message that asks for it; an empty
    session is as good as a new one."""
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
    """The last things that were said, the oldest first."""
    walk = walk_active_turns_back(session.pk, has_rewinds=session.rewind_count > 0, page=50)
    said = (turn for turn in walk if turn.role in _MARKS and turn.content.strip())
    lines: list[str] = []
    for turn in islice(said, SHOWN_TURNS):
        said_here = one_line(strip_marks(turn.content), limit=SHOWN_CHARS)
        line = f"{_MARKS[turn.role]} {escape(said_here, limit=SHOWN_CHARS)}"
        if size_of("\n".join([line, *lines])) > MESSAGE_LIMIT:
            break
        lines.insert(0, line)
    return "\n".join(lines) or "Nothing was said in this session yet."


_MARKS = {"user": "▸", "assistant": "◂"}


logger = logging.getLogger(__name__)

PASSED_BY = 100
"""Messages that do not concern the bot after which it keeps how far it has read."""

DECISIONS = {"once": ONCE, "always": ALWAYS, "deny": DENY}

CLOSED = "The account that the bot acts by may not write in its workspace."

NO_ACCOUNT = "Only people whose account here is named in the bot's settings may decide this."

GONE_ON = "The conversation has gone on since then."

NOT_HERE = "You may not talk to this bot here."


class MessageHandler:
    """``places`` is given once it is there: its messages come here."""

    places: Places

    def __init__(
        self, client: discord.Client, runtime: Runtime, options: DiscordOptions, replies: Replies
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._options = options
        self._rules = options.rules
        self._workspace = options.workspace
        self._replies = replies

    async def take(self, inbox: PlaceInbox, message: discord.Message) -> None:
        """Deal with one message of a place; a second time it changes nothing."""
        if not self._concerns_bot(inbox.spot, message):
            inbox.passed_by += 1
            if inbox.passed_by % PASSED_BY == 0:
                await self.places.mark(inbox, message.id)
            return
        try:
            await self._take(inbox, message)
        except (NotFound, NotPermitted) as error:
            logger.warning("discord_account_refused", extra={"fields": {"reason": error.message}})
            await self._answer(inbox, message, CLOSED)
        except LoomError as error:
            await self._answer(inbox, message, error.message)

    def _concerns_bot(self, spot: Spot, message: discord.Message) -> bool:
        if not is_from_a_person(message) or not self._rules.lets_in(message.author.id, spot):
            return False
        may_be_quiet = spot.guild is None or not self._rules.mentions_only
        return may_be_quiet or is_addressed(message, self._bot)

    @property
    def _bot(self) -> discord.ClientUser:
        assert self._client.user is not None
        return self._client.user

    async def _take(self, inbox: PlaceInbox, message: discord.Message) -> None:
        author = message.author.id
        text = text_of(message, self._bot)
        command = read_command(text)
        if command is not None and not message.attachments:
            said = await self.carry_out(command, inbox.spot, author=author, by=message.id)
            await self._answer(inbox, message, said)
            return
        account = await self._account_of(author)
        session = await self._open_session(inbox.spot, account, author=author)
        kept, refused = await attach_files(
            self._runtime, session, message.attachments, user_pk=account.pk
        )
        if not text and not kept:
            await self._answer(inbox, message, "\n".join(refused) or "This message has no text.")
            return
        accepted = await self._runtime.send(
            session,
            client_id=f"{CHANNEL}-{message.id}",
            text=with_speaker(text, message.author, inbox.spot),
            user_pk=account.pk,
            attachments=kept,
        )
        await self._note(inbox, message, accepted)
        if refused:
            await self._tell(inbox, message, "\n".join(refused))

    async def _note(self, inbox: PlaceInbox, message: discord.Message, accepted: Accepted) -> None:
        record = await self._runtime.writer.write(
            record_taken,
            accepted.run_pk,
            source=ChannelMessageSource(
                address=inbox.spot.channel,
                message=message.id,
                author=message.author.id,
                author_name=name_of(message.author),
            ),
            workspace_pk=self._workspace.pk,
            mark=self.places.marked(inbox, message.id),
        )
        self._replies.follow(record, is_left_over=not accepted.is_new)

    async def _answer(self, inbox: PlaceInbox, message: discord.Message, text: str) -> None:
        """Words of our own, with which the message is dealt with."""
        await self._tell(inbox, message, text)
        await self.places.mark(inbox, message.id)

    async def _tell(self, inbox: PlaceInbox, message: discord.Message, text: str) -> None:
        try:
            await inbox.channel.send(
                text,
                nonce=f"m{message.id}",
                reference=discord.MessageReference.from_message(message, fail_if_not_exists=False),
                suppress_embeds=True,
                mention_author=False,
            )
        except (discord.Forbidden, discord.NotFound) as error:
            logger.warning("discord_message_refused", extra={"fields": {"reason": str(error)}})

    async def _account_of(self, person: int) -> User:
        name = self._rules.account_of(person) or self._options.account
        return await self._runtime.readers.read(account_for, name, self._workspace)

    async def _open_session(self, spot: Spot, account: User, *, author: int) -> Session:
        """Direct messages are their writer's; what several people write is the bot's."""
        owner = account
        if spot.guild is not None:
            name = self._options.account
            owner = await self._runtime.readers.read(account_for, name, self._workspace)
        return await self._runtime.writer.write(
            open_place_session,
            account,
            owner,
            slug=self._workspace.slug,
            key=spot.key(author=author),
        )

    async def choose(self, interaction: discord.Interaction, command: str) -> None:
        """One of the commands was chosen from Discord's list."""
        await interaction.response.defer(ephemeral=command != "new")
        await _say(interaction, self._choose(interaction, command))

    async def _choose(self, interaction: discord.Interaction, command: str) -> str:
        spot = await self.places.find_spot(interaction.channel, interaction.guild)
        person = interaction.user.id
        if not self._rules.lets_in(person, spot):
            return NOT_HERE
        return await self.carry_out(command, spot, author=person, by=interaction.id)

    async def carry_out(self, command: str, spot: Spot, *, author: int, by: int) -> str:
        """Do what a command says, for the message ``by`` which it was asked for. Returns
        what to say; raises LoomError."""
        if command == "help":
            return describe_commands()
        account = await self._account_of(author)
        session = await self._open_session(spot, account, author=author)
        if command == "history":
            return await self._runtime.readers.read(describe_history, session)
        was_running = self._replies.is_open_in(session.pk)
        if was_running:
            await self._runtime.stop_run(session)
        if command == "stop":
            return "Stopped." if was_running else "No answer is being written."
        await self._runtime.writer.write(begin_in_place, session, message=by)
        return "A new session begins here. The earlier one stays in the archive."

    async def press(self, interaction: discord.Interaction) -> None:
        """A button was pressed; the message that has it will say what came of it."""
        data: dict[str, Any] = dict(interaction.data or {})
        name = str(data.get("custom_id", "")).split(":")
        if len(name) == 4 and name[0] == "loom":
            await interaction.response.defer()
            await _say(interaction, self._press(interaction, *name[1:]))

    async def _press(
        self, interaction: discord.Interaction, act: str, session: str, call: str
    ) -> str:
        name = self._rules.account_of(interaction.user.id)
        if not name:
            return NO_ACCOUNT
        account = await self._runtime.readers.read(account_for, name, self._workspace)
        visit = visit_by(account, CHANNEL)
        find = partial(get_session_for, to=WRITE)
        found, _ = await self._runtime.readers.read(find, visit, UUID(session))
        if act in DECISIONS:
            await self._runtime.decide_call(
                found, call=UUID(call), decision=DECISIONS[act], user_pk=account.pk
            )
        else:
            await self._go_on(interaction, found, account, again=act == "retry")
        return ""

    async def _go_on(
        self, interaction: discord.Interaction, session: Session, account: User, *, again: bool
    ) -> None:
        assert interaction.message is not None
        shown = interaction.message.id
        if not await self._runtime.readers.read(shows_last_message, session.pk, shown):
            raise Conflict(GONE_ON)
        runtime = self._runtime
        execute = partial(runtime.regenerate, turn=None) if again else runtime.continue_run
        accepted = await execute(
            session, client_id=f"{CHANNEL}-{interaction.message.id}", user_pk=account.pk
        )
        source = ChannelMessageSource(
            address=interaction.message.channel.id,
            message=interaction.message.id,
            author=interaction.user.id,
            author_name=name_of(interaction.user),
        )
        record = await self._runtime.writer.write(record_taken, accepted.run_pk, source=source)
        self._replies.follow(record, is_left_over=False)
        await interaction.edit_original_response(view=None)


async def _say(interaction: discord.Interaction, work: Coroutine[None, None, str]) -> None:
    """Answer in words, if there are any."""
    try:
        said = await work
    except LoomError as error:
        said = error.message
    except asyncio.CancelledError:
        raise
    except Exception:
        logger.exception("discord_interaction_failed")
        said = "Something went wrong. The server's log says why."
    if said:
        await interaction.followup.send(said, ephemeral=True, suppress_embeds=True)
