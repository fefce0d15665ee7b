"""One message to Discord: sent, edited, removed. Nobody is ever pinged by it, and
Discord fetches no page that it links to.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from io import BytesIO
from uuid import UUID

import aiohttp
import discord
from discord import ButtonStyle
from django.db import DatabaseError

from conversations.domain.errors import Unavailable
from conversations.domain.events import (
    APPROVAL_ASKED,
    APPROVAL_DECIDED,
    AssistantText,
    ContentIndicator,
    Fallback,
    Info,
    Payload,
    ToolCallCompleted,
    TurnSeparator,
)
from conversations.domain.invisible_chars import write_out
from conversations.domain.runs import STOPPED
from conversations.domain.text import one_line
from conversations.domain.tool_policy import ApprovalRequest, read_asked
from conversations.rendering.tool_words import (
    decision_text,
    state_word,
    telling_argument,
    tool_word,
)

from .message_parts import MESSAGE_LIMIT, size_of, split_message

# What the messages of a reply say: made from a run's rows and the draft of its answer.


SHOWN_OF_PLAN = 1_200
"""Characters of a command or diff that a question shows."""

AROUND = 100
"""Characters of a message that are left for the block's fences, and to say that there is
more than it shows."""

LABEL_CHARS = 80
"""Of a button, at most. What "always" allows stands in the message where it is longer."""

FILE_NAME = "answer.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyItem:
    """One message. ``call`` is the uuid of a call that waits for a person, ``always``
    what else could be allowed with it. ``action``: what can be done about how the run
    ended (``retry``, ``continue``). ``file`` is attached, as text."""

    text: str
    call: str = ""
    always: str = ""
    action: str = ""
    file: str = ""


@dataclass(slots=True)
class _Question:
    asked: ApprovalRequest
    outcome: str = ""

    def as_item(self) -> ReplyItem:
        asked = self.asked
        lines = [f"**May I?** {escape(asked.summary or asked.name, limit=200)}"]
        if asked.note:
            lines.append(f"-# {escape(asked.note, limit=200)}")
        if len(f"Always allow {asked.kind_label}") > LABEL_CHARS and not self.outcome:
            lines.append(f"-# Always allow {escape(asked.kind_label, limit=255)}")
        if self.outcome:
            lines.append(f"-# {escape(self.outcome, limit=100)}")
        if shown := asked.diff or asked.command:
            room = MESSAGE_LIMIT - size_of("\n".join(lines)) - AROUND
            lines.insert(1, fenced(shown, "diff" if asked.diff else "sh", room=room))
        text = split_message("\n".join(lines))[0]
        if self.outcome:
            return ReplyItem(text=text)
        return ReplyItem(text=text, call=asked.call, always=asked.kind_label)


@dataclass(slots=True)
class _Sheet:
    """Texts and questions in order. Neighbouring notes share a paragraph."""

    pieces: list[str | _Question] = field(default_factory=list)
    ends_with_note: bool = False
    action: str = ""

    def say(self, text: str) -> None:
        if text.strip():
            self._add(text, gap="\n\n")
            self.ends_with_note = False

    def note(self, text: str) -> None:
        line = f"-# {escape(text, limit=300)}"
        self._add(line, gap="\n" if self.ends_with_note else "\n\n")
        self.ends_with_note = True

    def _add(self, text: str, *, gap: str) -> None:
        last = self.pieces[-1] if self.pieces else None
        if isinstance(last, str):
            self.pieces[-1] = f"{last}{gap}{text}"
        else:
            self.pieces.append(text)

    def question(self, call: str) -> _Question | None:
        return next(
            (p for p in self.pieces if isinstance(p, _Question) and p.asked.call == call), None
        )


def make_items(
    payloads: Iterable[Payload | Fallback],
    draft: Iterable[str] = (),
    *,
    done: bool,
    most: int,
) -> list[ReplyItem]:
    """The messages that show a run; never none when it is done. Beyond ``most`` messages
    the whole text is a file."""
    sheet = _Sheet()
    for payload in payloads:
        _write(sheet, payload)
    for text in draft:
        sheet.say(text)
    items: list[ReplyItem] = []
    for piece in sheet.pieces:
        if isinstance(piece, _Question):
            items.append(piece.as_item())
        else:
            items += [ReplyItem(text=part) for part in split_message(piece)]
    if done:
        items = [replace(item, call="", always="") for item in items]
        items = items or [ReplyItem(text="-# There is no answer.")]
    whole = "\n\n".join(piece for piece in sheet.pieces if isinstance(piece, str))
    items = _shortened(items, most, whole, done=done)
    if done and sheet.action:
        items[-1] = replace(items[-1], action=sheet.action)
    return items


def _shortened(items: list[ReplyItem], most: int, whole: str, *, done: bool) -> list[ReplyItem]:
    if len(items) <= most:
        return items
    waiting = [item for item in items[most - 1 :] if item.call]
    note = (
        ReplyItem(text="-# The whole answer is in the file.", file=whole)
        if done
        else ReplyItem(text="-# More is being written. The whole answer comes as a file.")
    )
    return [*items[: most - 1], note, *waiting]


def _write(sheet: _Sheet, payload: Payload | Fallback) -> None:
    match payload:
        case AssistantText(text=text):
            sheet.say(text)
        case ToolCallCompleted():
            _write_call(sheet, payload)
        case ContentIndicator(label=label):
            sheet.note(f"📎 {label}")
        case Info():
            _write_notice(sheet, payload)
        case TurnSeparator(state=state) if state == STOPPED:
            sheet.note("Stopped.")
        case Fallback(reason=reason):
            sheet.note(f"A row cannot be shown: {reason}")


def _write_call(sheet: _Sheet, call: ToolCallCompleted) -> None:
    question = sheet.question(call.call) if call.call else None
    if question is not None and not question.outcome:
        question.outcome = "Nobody has to decide this any more."
    word, _ = tool_word(call.name)
    _, outcome = state_word(call.state, call.ok)
    argument = telling_argument(call.name, call.arguments)
    sheet.note(f"{word} {argument} · {outcome}" if argument else f"{word} · {outcome}")


def _write_notice(sheet: _Sheet, notice: Info) -> None:
    data = notice.data or {}
    if notice.code == APPROVAL_ASKED:
        sheet.pieces.append(_Question(read_asked(data)))
        sheet.ends_with_note = False
    elif notice.code == APPROVAL_DECIDED:
        question = sheet.question(str(data.get("call") or ""))
        if question is not None:
            question.outcome = decision_text(
                str(data.get("decision") or ""),
                by=str(data.get("by") or ""),
                reason=str(data.get("reason") or ""),
                kind=question.asked.kind_label,
            )
    else:
        sheet.note(notice.text)
        sheet.action = notice.action


def escape(text: str, *, limit: int) -> str:
    """The beginning on one line, without what Discord would take for markup."""
    shown = write_out(one_line(text, limit=limit), name=lambda name: f"<{name}>", most=10)
    return "".join(f"\\{char}" if char in "*_`~|<>[]\\" else char for char in shown)


def fenced(text: str, language: str, *, room: int) -> str:
    """As a block of code, or as much of its beginning as has room. A person decides by
    it: what does not show, or turns the order of other characters around, is written out."""
    shown = text[:SHOWN_OF_PLAN]
    while (size := size_of(_quoted(shown))) > room:
        shown = shown[: len(shown) * room // size]
    left_out = len(text) - len(shown)
    block = f"```{language}\n{_quoted(shown)}\n```"
    return f"{block}\n-# … and {left_out:,} characters more" if left_out > 0 else block


def _quoted(text: str) -> str:
    seen = write_out(text, name=lambda name: f"<{name}>")
    return seen.replace("```", "`\u200b``")


type Channel = discord.PartialMessageable


async def post(
    channel: Channel, item: ReplyItem, *, nonce: str, source: int, session: UUID
) -> discord.Message:
    """Send a message as a reply to ``source`` (0: to none). A second time with the same
    nonce, within some minutes, Discord gives the first message back."""
    reference = (
        discord.MessageReference(message_id=source, channel_id=channel.id, fail_if_not_exists=False)
        if source
        else None
    )
    options: dict[str, object] = {"reference": reference} if reference else {}
    if item.file:
        options["file"] = _file_of(item)
    view = _view_of(item, session)
    if view is not None:
        options["view"] = view
    return await channel.send(  # type: ignore[call-overload, no-any-return]
        item.text, nonce=nonce, suppress_embeds=True, mention_author=False, **options
    )


async def edit(channel: Channel, message: int, item: ReplyItem, *, session: UUID) -> None:
    await channel.get_partial_message(message).edit(
        content=item.text,
        view=_view_of(item, session),
        attachments=[_file_of(item)] if item.file else [],
    )


async def remove(channel: Channel, message: int) -> None:
    await channel.get_partial_message(message).delete()


def _file_of(item: ReplyItem) -> discord.File:
    return discord.File(BytesIO(item.file.encode("utf-8", "replace")), FILE_NAME)


def _view_of(item: ReplyItem, session: UUID) -> discord.ui.View | None:
    """The buttons, if there are any. What they do is known by their names alone, so that
    they work after a restart too: the library keeps nothing of them."""
    buttons = _buttons(item, session)
    if not buttons:
        return None
    view = discord.ui.View(timeout=None)
    for button in buttons:
        view.add_item(button)
    view.stop()
    return view


def _buttons(item: ReplyItem, session: UUID) -> list[discord.ui.Button[discord.ui.View]]:
    if item.action:
        return [_button(item.action.title(), ButtonStyle.primary, item.action, session, "")]
    if not item.call:
        return []
    found = [_button("Approve", ButtonStyle.success, "once", session, item.call)]
    if item.always:
        label = f"Always allow {item.always}"
        label = label if len(label) <= LABEL_CHARS else "Always"  # the message says what
        found.append(_button(label, ButtonStyle.secondary, "always", session, item.call))
    return [*found, _button("Deny", ButtonStyle.danger, "deny", session, item.call)]


def _button(
    label: str, style: ButtonStyle, act: str, session: UUID, call: str
) -> discord.ui.Button[discord.ui.View]:
    name = f"loom:{act}:{session.hex}:{call}"
    return discord.ui.Button(label=label, style=style, custom_id=name)


# Trying again for as long as it may go well later.


logger = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0

PASSING = (
    discord.DiscordServerError,
    discord.RateLimited,
    aiohttp.ClientError,
    OSError,
    DatabaseError,
    Unavailable,
)
"""What may pass: Discord, the network or the database is away. (TimeoutError is an
OSError.)"""


async def keep_trying[T](
    work: Callable[[], Awaitable[T]], *, is_over: Callable[[], bool] = lambda: False
) -> T | None:
    """What the work gives, however long that takes; None when it is over before."""
    wait = FIRST_WAIT
    while not is_over():
        try:
            return await work()
        except PASSING as error:
            logger.warning("discord_not_reached", extra={"fields": {"reason": str(error)}})
            await asyncio.sleep(wait)
            wait = min(LONGEST_WAIT, wait * 2)
    return None
