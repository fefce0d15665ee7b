"""Making the messages of a reply from a run's rows and its draft, and posting and editing them.

The messages never notify the people they mention, and Discord shows no previews of their links.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from http import HTTPStatus
from io import BytesIO
from uuid import UUID

import aiohttp
import discord
from discord import ButtonStyle
from django.db import DatabaseError

from conversations.domain import events
from conversations.domain.errors import StorageFull, Unavailable
from conversations.domain.runs import STOPPED
from conversations.domain.text import escape_invisible, one_line
from conversations.domain.tool_calls import ApprovalRequest, read_asked
from conversations.domain.tool_questions import QUESTION_ANSWERED, QUESTION_ASKED
from conversations.rendering import tool_rows

from .message_parts import MAX_MESSAGE_UNITS, size_of, split_message

logger = logging.getLogger(__name__)

MAX_LINE_CHARS = 200  # Of a tool call's summary, and of the note about it.

RESERVED_UNITS = 100  # For the code block's fences, and for the line that counts omitted text.

# Of a button's label. If "Always allow …" is longer, the message says what would be allowed.
MAX_LABEL_CHARS = 80

FILE_NAME = "answer.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyItem:
    """The content of one message.

    ``call`` is the uuid of a tool call that waits for a person. ``always`` is the kind of calls
    that could be allowed always. ``is_whole`` says that the text shows everything the person
    decides on. ``action`` is the action after the end of the run (``retry``, ``continue``).
    ``file`` is a text that is attached as a file."""

    text: str
    call: str = ""
    always: str = ""
    is_whole: bool = True
    action: str = ""
    file: str = ""


class _Question:
    def __init__(self, asked: ApprovalRequest) -> None:
        self.asked = asked
        self.outcome = ""

    def as_item(self, page: str) -> ReplyItem:
        request = self.asked
        summary = escape(request.summary or request.name, limit=MAX_LINE_CHARS)
        lines = [f"**Approval needed:** {summary}"]
        if request.note:
            lines.append(f"-# {escape(request.note, limit=MAX_LINE_CHARS)}")
        always = f"-# Always allow {escape(request.kind_label, limit=255)}"
        elsewhere = f"-# Approve it at {page}"
        is_whole = max(len(request.summary), len(request.note)) <= MAX_LINE_CHARS
        if block_text := request.diff or request.command:
            # One of these lines follows the block. Reserve room for the longest, so that the block
            # is the same with each.
            last = max(map(size_of, (always, elsewhere, escape(self.outcome, limit=100))))
            room = MAX_MESSAGE_UNITS - size_of("\n".join(lines)) - last - RESERVED_UNITS
            block, left_out = fenced(block_text, "diff" if request.diff else "sh", room=room)
            lines.insert(1, block)
            is_whole = is_whole and not left_out
        if self.outcome:
            lines.append(f"-# {escape(self.outcome, limit=100)}")
        elif not is_whole:
            lines.append(elsewhere)
        elif len(f"Always allow {request.kind_label}") > MAX_LABEL_CHARS:
            lines.append(always)
        text = split_message("\n".join(lines))[0]
        if self.outcome:
            return ReplyItem(text=text)
        return ReplyItem(text=text, call=request.call, always=request.kind_label, is_whole=is_whole)


class _ReplyComposer:
    """The texts and approval requests of a reply, in order.

    Consecutive notes share a paragraph. ``page`` is the URL of the session, where questions of
    tool servers can be answered. ``unanswered`` has the lines of unanswered questions."""

    def __init__(self, page: str) -> None:
        self.pieces: list[str | _Question] = []
        self.questions: dict[str, _Question] = {}
        self.unanswered: dict[str, str] = {}
        self._page = page
        self.ends_with_note = False
        self.action = ""

    def add_text(self, text: str) -> None:
        if text.strip():
            self._add(text, gap="\n\n")
            self.ends_with_note = False

    def add_note(self, text: str) -> None:
        self._add_line(f"-# {escape(text, limit=300)}")

    def _add_line(self, line: str) -> None:
        self._add(line, gap="\n" if self.ends_with_note else "\n\n")
        self.ends_with_note = True

    def _add(self, text: str, *, gap: str) -> None:
        last = self.pieces[-1] if self.pieces else None
        if isinstance(last, str):
            self.pieces[-1] = f"{last}{gap}{text}"
        else:
            self.pieces.append(text)

    def write(self, payload: events.Payload | events.Fallback) -> None:
        match payload:
            case events.AssistantText(text=text):
                self.add_text(text)
            case events.ToolCallCompleted():
                question = self.questions.get(payload.call or "")
                if question is not None and not question.outcome:
                    question.outcome = "This no longer needs a decision."
                word, _ = tool_rows.tool_word(payload.name)
                _, outcome = tool_rows.state_word(payload.state, payload.ok)
                argument = tool_rows.telling_argument(payload.name, payload.arguments)
                self.add_note(
                    f"{word} {argument} · {outcome}" if argument else f"{word} · {outcome}"
                )
            case events.ContentIndicator(label=label):
                self.add_note(f"📎 {label}")
            case events.Info():
                self._write_notice(payload)
            case events.TurnSeparator(state=state) if state == STOPPED:
                self.add_note("Stopped.")
            case events.Fallback(reason=reason):
                self.add_note(f"Unreadable row: {reason}")

    def _write_notice(self, notice: events.Info) -> None:
        data = notice.data or {}
        if notice.code == events.APPROVAL_ASKED:
            question = _Question(read_asked(data))
            self.pieces.append(question)
            self.questions.setdefault(question.asked.call, question)
            self.ends_with_note = False
        elif notice.code == QUESTION_ASKED:
            line = f"-# {escape(notice.text, limit=300)} Answer at {self._page}"
            self.unanswered[str(data.get("id"))] = line
            self._add_line(line)
        elif notice.code != events.APPROVAL_DECIDED:
            if notice.code == QUESTION_ANSWERED:
                self.unanswered.pop(str(data.get("question")), None)
            self.add_note(notice.text)
            self.action = notice.action
        elif decided := self.questions.get(str(data.get("call") or "")):
            decided.outcome = tool_rows.decision_text(
                str(data.get("decision") or ""),
                by=str(data.get("by") or ""),
                reason=str(data.get("reason") or ""),
                kind=decided.asked.kind_label,
            )


def make_items(
    payloads: Iterable[events.Payload | events.Fallback],
    draft: Iterable[str] = (),
    *,
    done: bool,
    max_messages: int,
    page: str,
) -> list[ReplyItem]:
    """Return the messages that show a run. There is at least one when the run is done.

    If there are more than ``max_messages``, the whole text is attached as a file. ``page`` is the
    URL of the session."""
    sheet = _ReplyComposer(page)
    for payload in payloads:
        sheet.write(payload)
    for text in draft:
        sheet.add_text(text)
    items: list[ReplyItem] = []
    for piece in sheet.pieces:
        if isinstance(piece, _Question):
            items.append(piece.as_item(page))
        else:
            items += [ReplyItem(text=part) for part in split_message(piece)]
    if done:
        items = [replace(item, call="", always="") for item in items]
        items = items or [ReplyItem(text="-# No answer.")]
    if len(items) > max_messages:
        running = "-# The answer is still running. The complete text will be attached as a file."
        note = ReplyItem(text=split_message("\n".join([running, *sheet.unanswered.values()]))[0])
        if done:
            whole = "\n\n".join(piece for piece in sheet.pieces if isinstance(piece, str))
            note = ReplyItem(text="-# The complete answer is in the file.", file=whole)
        # Tool calls that wait for a person are always shown.
        items[max_messages - 1 :] = [
            note,
            *(item for item in items[max_messages - 1 :] if item.call),
        ]
    if done and sheet.action:
        items[-1] = replace(items[-1], action=sheet.action)
    return items


def escape(text: str, *, limit: int) -> str:
    """Return the beginning of the text on one line, with Discord's markup escaped."""
    visible_text = escape_invisible(
        one_line(text, limit=limit), name=lambda name: f"<{name}>", most=10
    )
    return "".join(f"\\{char}" if char in "*_`~|<>[]\\" else char for char in visible_text)


def fenced(text: str, language: str, *, room: int) -> tuple[str, int]:
    """Return a code block with as much of the text as fits, and the count of omitted characters.

    Because a person decides by the block, invisible characters and those that change the text
    direction are shown by name."""
    shown = text[:room]
    while (size := size_of(_quoted(shown))) > room:
        shown = shown[: len(shown) * room // size]
    left_out = len(text) - len(shown)
    block = f"```{language}\n{_quoted(shown)}\n```"
    if left_out:
        block = f"{block}\n-# … and {left_out:,} characters more"
    return block, left_out


def _quoted(text: str) -> str:
    seen = escape_invisible(text, name=lambda name: f"<{name}>")
    return seen.replace("```", "`\u200b``")


type Channel = discord.PartialMessageable


async def post(
    channel: Channel, item: ReplyItem, *, nonce: str, source: int, session: UUID
) -> discord.Message:
    """Send a message as a reply to ``source``, or to no message if ``source`` is 0.

    If a message with the same nonce was sent some minutes before, Discord returns that message."""
    options: dict[str, object] = {}
    if source:
        options["reference"] = discord.MessageReference(
            message_id=source, channel_id=channel.id, fail_if_not_exists=False
        )
    if item.file:
        options["file"] = _file_of(item)
    if (view := _view_of(item, session)) is not None:
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


def _file_of(item: ReplyItem) -> discord.File:
    return discord.File(BytesIO(item.file.encode("utf-8", "replace")), FILE_NAME)


def _view_of(item: ReplyItem, session: UUID) -> discord.ui.View | None:
    buttons = make_buttons(item, session)
    if not buttons:
        return None
    view = discord.ui.View(timeout=None)
    for button in buttons:
        view.add_item(button)
    # Remove the view from the library's memory. The buttons are handled by their ids alone, so
    # they also work after a restart.
    view.stop()
    return view


def make_buttons(item: ReplyItem, session: UUID) -> list[discord.ui.Button[discord.ui.View]]:
    chosen: list[tuple[str, ButtonStyle, str]] = []
    if item.action:
        chosen = [(item.action.title(), ButtonStyle.primary, item.action)]
    elif item.call:
        if item.is_whole:
            chosen = [("Approve", ButtonStyle.success, "once")]
        if item.is_whole and item.always:
            label = f"Always allow {item.always}"
            label = label if len(label) <= MAX_LABEL_CHARS else "Always"  # the text has the rest
            chosen.append((label, ButtonStyle.secondary, "always"))
        chosen.append(("Deny", ButtonStyle.danger, "deny"))
    call = "" if item.action else item.call
    return [
        discord.ui.Button(label=label, style=style, custom_id=f"loom:{act}:{session.hex}:{call}")
        for label, style, act in chosen
    ]


# Retrying after transient errors.

FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 1.0, 60.0

# TimeoutError is a subclass of OSError.
_PASSING = (
    discord.RateLimited,
    aiohttp.ClientError,
    OSError,
    DatabaseError,
    Unavailable,
    StorageFull,
)


def is_transient(error: Exception) -> bool:
    """Return whether Discord, the network, the database or the storage fails temporarily."""
    if isinstance(error, discord.HTTPException):
        # If Discord does not say how long to wait, the library raises a 429 like any other error.
        return error.status == HTTPStatus.TOO_MANY_REQUESTS or error.status >= 500
    return isinstance(error, _PASSING)


async def retry_until_done[T](
    work: Callable[[], Awaitable[T]], *, is_over: Callable[[], bool] = lambda: False
) -> T | None:
    """Repeat the work after transient errors and return its result.

    Return None if ``is_over`` becomes true before the work succeeds."""
    wait = FIRST_WAIT_SECONDS
    while not is_over():
        try:
            return await work()
        except Exception as error:
            if not is_transient(error):
                raise
            logger.warning("discord_not_reached", extra={"fields": {"reason": str(error)}})
            await asyncio.sleep(wait)
            wait = min(MAX_WAIT_SECONDS, wait * 2)
    return None
