"""Messages of another program as the beginning of a session.

Its turns have no events: their rows are made from them, and a notice behind them says
where they came from. Images and documents in them become attachments, as if somebody had
attached them here.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import takewhile
from typing import Any

from django.db import transaction

from conversations.domain.errors import Conflict, Rejected
from conversations.domain.events import BROUGHT_ALONG, Info
from conversations.domain.formats import FORMATS, Message, SpokenFile, leave_closed, read_file
from conversations.domain.formats.contents import FORMATS_KEY, keep_difference
from conversations.domain.text import dump_json
from conversations.domain.turns import (
    ASSISTANT,
    MODEL_NOTE,
    SYSTEM,
    TOOL,
    USER,
    NewTurn,
    read_blocks,
    read_metadata,
)
from conversations.models import Run, Session

from .append import NewEvent, append, lock_session
from .attachments import (
    attachment_block,
    content_opener,
    examine,
    list_attachments,
    read_uuids,
    save_attachment,
    upload_attachment,
)
from .file_types import FileType

# Files that are within a message, as programs send them.


def save_spoken_files(
    session: Session, files: Sequence[SpokenFile], *, client_id: str, user_pk: int
) -> list[str]:
    """Keep the files as attachments and return their uuids; those of the message of this
    ``client_id``, where it was sent before with them. Raises as ``upload_attachment``."""
    known = _known_files(session, client_id) if files else {}
    kept: list[str] = []
    for file in reversed(files):  # those that were named by their uuids stand before them
        same = known.get(sha256(file.data).hexdigest())
        kept.insert(0, same.pop() if same else _keep(session, file, user_pk))
    return kept


def _known_files(session: Session, client_id: str) -> dict[str, list[str]]:
    """Digest to uuids."""
    run = Run.objects.filter(session=session.pk, client_id=client_id).first()
    known: dict[str, list[str]] = {}
    for attachment in list_attachments(session.pk, read_uuids(run)) if run is not None else []:
        known.setdefault(attachment.digest, []).append(str(attachment.uuid))
    return known


def _keep(session: Session, file: SpokenFile, user_pk: int) -> str:
    kept = upload_attachment(session.pk, data=file.data, name=file.name, user_pk=user_pk)
    return str(kept.uuid)


type Block = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A file in a turn, and what it is."""

    place: int
    file: SpokenFile
    content: FileType


@dataclass(frozen=True, slots=True, kw_only=True)
class _Examined:
    turn: NewTurn
    files: list[_Found] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """Messages that are ready to be the beginning of a session. ``instructions`` are
    those of its system messages in front."""

    format: str
    turns: list[_Examined]
    instructions: str


def prepare_messages(messages: Iterable[Any], *, format: str, model: str = "") -> Brought:
    """Read the messages; raises Rejected for one that is none. ``model`` is the one that
    gave the answers, if that is known: another one is not given their thinking. Takes
    some time for images: before any lock."""
    turns = [_marked(turn, format, model) for turn in FORMATS[format].read(messages)]
    in_front = list(takewhile(lambda turn: turn.role == SYSTEM, turns))
    later = [_as_note(turn) for turn in turns[len(in_front) :]]
    return Brought(
        format=format,
        turns=[_examine(turn) for turn in (*in_front, *later)],
        instructions="\n\n".join(turn.content for turn in in_front),
    )


def _marked(turn: NewTurn, format: str, model: str) -> NewTurn:
    marks: dict[str, Any] = {BROUGHT_ALONG: format}
    if turn.role == ASSISTANT:
        marks["model"] = model
    return replace(turn, metadata=dump_json(read_metadata(turn) | marks))


def _as_note(turn: NewTurn) -> NewTurn:
    """A system message among the others is given to the model where it stands."""
    if turn.role != SYSTEM:
        return turn
    return replace(turn, metadata=dump_json(read_metadata(turn) | {MODEL_NOTE: True}))


def _examine(turn: NewTurn) -> _Examined:
    """Files that cannot be attached stay in the turn as they are."""
    blocks = read_blocks(turn) if turn.role in (USER, TOOL) else None
    found: list[_Found] = []
    for place, block in enumerate(blocks or []):
        try:
            file = read_file(block)
            found.append(_Found(place=place, file=file, content=examine(file.data, file.name)))
        except Rejected:
            continue
    return _Examined(turn=turn, files=found)


def import_history(session: Session, brought: Brought, *, user_pk: int | None) -> int:
    """Make the messages the first turns of a session; returns how many. Raises Conflict
    for one that has any already. One transaction."""
    with transaction.atomic():
        lock_session(session.pk)
        has_begun = Session.objects.filter(pk=session.pk).exclude(next_turn=1, next_seq=1).exists()
        if has_begun or session.runs.exists():
            raise Conflict("The session has begun already.", code="session_has_begun")
        Session.objects.filter(pk=session.pk, instructions="").update(
            instructions=brought.instructions
        )
        if not brought.turns:
            return 0
        open_content = content_opener(session.pk)
        turns = [
            _attach(session, one, number, brought.format, open_content, user_pk)
            for number, one in enumerate(brought.turns, 1)
        ]
        append(session.pk, session_uuid=session.uuid, turns=turns)
        append(session.pk, session_uuid=session.uuid, events=[_notice(len(turns))])
        return len(turns)


def _notice(count: int) -> NewEvent:
    what = "The message above was" if count == 1 else f"The {count} turns above were"
    return NewEvent(
        payload=Info(
            text=f"{what} brought along by a program.", code=BROUGHT_ALONG, data={"turns": count}
        )
    )


def _attach(
    session: Session,
    examined: _Examined,
    number: int,
    format: str,
    open_content: Callable[[Block], list[Block]],
    user_pk: int | None,
) -> NewTurn:
    """The turn with references in place of files. It is written as it was read still."""
    turn = examined.turn
    if not examined.files:
        return turn
    blocks = read_blocks(turn) or []
    tokens = 0
    for found in examined.files:
        attachment = save_attachment(
            session.pk,
            data=found.file.data,
            name=found.file.name,
            user_pk=user_pk,
            turn=number,
            content=found.content,
        )
        tokens += attachment.tokens
        own = {k: v for k, v in blocks[found.place].items() if k not in ("type", "source", "title")}
        blocks[found.place] = own | attachment_block(attachment)
    metadata = read_metadata(turn)
    formats = {k: v for k, v in (metadata.get(FORMATS_KEY) or {}).items() if k != format}
    changed = replace(
        turn,
        blocks=dump_json(blocks),
        token_count=turn.token_count + tokens,
        metadata=dump_json(metadata | {FORMATS_KEY: formats}),
    )
    return keep_difference(
        changed,
        _write(format, turn, leave_closed),
        name=format,
        write=lambda one: _write(format, one, open_content),
    )


def _write(format: str, turn: NewTurn, open_content: Callable[[Block], list[Block]]) -> Message:
    [(_, message)] = FORMATS[format].write([turn], open_content)
    return message
