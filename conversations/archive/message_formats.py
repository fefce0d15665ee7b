"""Sessions as messages in another program's format (``domain.formats``), streamed.

The messages are those of the active path, in order. They contain attached files as base64. Only one
message's files are in memory at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from conversations.domain.attachments import Block
from conversations.domain.errors import Conflict, Rejected
from conversations.domain.events import BROUGHT_ALONG, Info
from conversations.domain.formats import READERS, WRITERS, MessageFile, read_file
from conversations.domain.formats.contents import (
    FORMATS_KEY,
    Message,
    leave_closed,
    with_difference,
)
from conversations.domain.messages import say_number
from conversations.domain.text import dump_json
from conversations.domain.turns import (
    ASSISTANT,
    MODEL_NOTE,
    SYSTEM,
    TOOL,
    USER,
    AnyTurn,
    NewTurn,
    StoredTurn,
    read_blocks,
    read_metadata,
)
from conversations.models import Run, Session, Turn

from .append import NewEvent, locked_session, walk_rows
from .attachments import (
    attachment_block,
    content_opener,
    list_attachments,
    read_uuids,
    save_attachment,
    upload_attachment,
)
from .file_types import FileType, examine
from .turns import COLUMNS, are_turns_within, read_rewound


def save_message_files(
    session: Session, files: Sequence[MessageFile], *, client_id: str, user_pk: int
) -> list[str]:
    """Store the files in a message as attachments and return their UUIDs.

    If a message with this ``client_id`` was sent before, use the attachments of that message for
    files with the same content. Raise the errors of :func:`upload_attachment`.
    """
    sent_before: dict[str, list[str]] = {}
    run = Run.objects.filter(session=session.pk, client_id=client_id).first() if files else None
    if run is not None:
        for attachment in list_attachments(session.pk, read_uuids(run)):
            sent_before.setdefault(attachment.digest, []).append(str(attachment.uuid))
    uuids: list[str] = []
    for file in reversed(files):  # the run's list has attachments named by UUID first
        matching = sent_before.get(sha256(file.data).hexdigest())
        if matching:
            uuids.append(matching.pop())
        else:
            new = upload_attachment(session.pk, data=file.data, name=file.name, user_pk=user_pk)
            uuids.append(str(new.uuid))
    return uuids[::-1]


# A file in a turn: its index among the blocks, the file, and its type.
type FoundFile = tuple[int, MessageFile, FileType]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedHistory:
    """Messages that are ready to become the first turns of a session.

    Each turn comes with its files. ``instructions`` is the text of the system messages at the
    beginning.
    """

    format: str
    turns: list[tuple[NewTurn, list[FoundFile]]]
    instructions: str


def prepare_messages(messages: Iterable[Any], *, format: str, model: str) -> PreparedHistory:
    """Read the messages and examine their files.

    ``model`` is the model that gave the answers, if it is known; thinking is not sent to a
    different model. Raise Rejected if a message is not valid. Examining images takes time, so call
    this before taking a lock.
    """
    turns, instructions = [], []
    is_in_front = True
    for turn in READERS[format](messages):
        marks: dict[str, Any] = {BROUGHT_ALONG: format}
        is_in_front = is_in_front and turn.role == SYSTEM
        if turn.role == ASSISTANT:
            marks["model"] = model
        elif is_in_front:
            instructions.append(turn.content)
        elif turn.role == SYSTEM:  # a later system message is sent to the model at its place
            marks[MODEL_NOTE] = True
        marked = replace(turn, metadata=dump_json(read_metadata(turn) | marks))
        turns.append((marked, _find_files(marked)))
    return PreparedHistory(format=format, turns=turns, instructions="\n\n".join(instructions))


def _find_files(turn: NewTurn) -> list[FoundFile]:
    found: list[FoundFile] = []
    if turn.role not in (USER, TOOL):
        return found
    for index, block in enumerate(read_blocks(turn) or []):
        # A file that cannot be attached stays in the turn unchanged.
        with suppress(Rejected):
            file = read_file(block)
            found.append((index, file, examine(file.data, file.name)))
    return found


def import_history(session: Session, history: PreparedHistory, *, user_pk: int | None) -> int:
    """Store the messages as the first turns of a session, and return the number of turns.

    This is one transaction. Raise Conflict if the session already has turns, events or runs.
    """
    with locked_session(session.pk) as locked:
        if (locked.next_turn, locked.next_seq) != (1, 1) or session.runs.exists():
            raise Conflict("The session already has messages.", code="session_has_begun")
        Session.objects.filter(pk=session.pk, instructions="").update(
            instructions=history.instructions
        )
        if not history.turns:
            return 0
        open_content = content_opener(session.pk)
        turns = [
            _attach(session, turn, files, number, history.format, open_content, user_pk)
            if files
            else turn
            for number, (turn, files) in enumerate(history.turns, 1)
        ]
        count = len(turns)
        text = say_number(
            "The message above was imported by a program.",
            "The %(count)s turns above were imported by a program.",
            count,
        )
        notice = Info(text=text, code=BROUGHT_ALONG, data={"turns": count})
        # Append the turns and the notice separately, so that the notice follows the turns and
        # belongs to none of them.
        locked.append(turns=turns)
        locked.append(events=[NewEvent(payload=notice)])
        return count


def _attach(
    session: Session,
    turn: NewTurn,
    files: list[FoundFile],
    number: int,
    format: str,
    open_content: Callable[[Block], list[Block]],
    user_pk: int | None,
) -> NewTurn:
    # Replace the files by references. The turn can still be written in the same format as it was
    # read.
    blocks = read_blocks(turn) or []
    tokens = 0
    for index, file, content in files:
        attachment = save_attachment(
            session.pk,
            data=file.data,
            name=file.name,
            user_pk=user_pk,
            turn=number,
            content=content,
        )
        tokens += attachment.tokens
        rest = {k: v for k, v in blocks[index].items() if k not in ("type", "source", "title")}
        blocks[index] = rest | attachment_block(attachment)
    metadata = read_metadata(turn)
    formats = {k: v for k, v in (metadata.get(FORMATS_KEY) or {}).items() if k != format}
    changed = replace(
        turn,
        blocks=dump_json(blocks),
        token_count=turn.token_count + tokens,
        metadata=dump_json(metadata | {FORMATS_KEY: formats}),
    )
    return with_difference(
        changed,
        _write(format, turn, leave_closed),
        name=format,
        write=lambda one: _write(format, one, open_content),
    )


def _write(format: str, turn: NewTurn, open_content: Callable[[Block], list[Block]]) -> Message:
    [(_, message)] = WRITERS[format]([turn], open_content)
    return message


def walk_messages(
    session: Session, *, format: str, from_turn: int = 0
) -> Iterator[tuple[int, Message]]:
    """Yield the messages on the active path with the numbers of their first turns.

    ``from_turn`` must be 0 or a turn that begins a message. If it is 0, the session's own
    instructions come first as a system message, unless the session begins with one.
    """
    rows = Turn.objects.filter(
        session=session.pk, number__gte=from_turn, number__lt=session.next_turn
    )
    rows = rows.exclude(are_turns_within(read_rewound(session.pk, "turn")))
    stored = (StoredTurn(**row) for row in walk_rows(rows, *COLUMNS, key="number"))
    turns: Iterator[AnyTurn] = with_instructions(session, stored) if from_turn == 0 else stored
    return WRITERS[format](turns, content_opener(session.pk))


def with_instructions(
    session: Session, turns: Iterator[StoredTurn]
) -> Iterator[NewTurn | StoredTurn]:
    """Yield the turns, after the session's own instructions unless the first is a system turn."""
    first = next(turns, None)
    if session.instructions and (first is None or first.role != SYSTEM):
        yield NewTurn(role=SYSTEM, content=session.instructions, created_at=session.created_at)
    if first is not None:
        yield first
    yield from turns


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePage:
    """A page of messages. ``next_turn`` is where the next page begins, or None on the last page."""

    messages: list[Message]
    next_turn: int | None


def read_messages(session: Session, *, format: str, from_turn: int = 0, limit: int) -> MessagePage:
    """Return up to ``limit`` messages, see :func:`walk_messages`."""
    messages: list[Message] = []
    for number, message in walk_messages(session, format=format, from_turn=from_turn):
        if len(messages) == limit:
            return MessagePage(messages=messages, next_turn=number)
        messages.append(message)
    return MessagePage(messages=messages, next_turn=None)
