"""The interchange file, one JSON object a line: tolerant reading and exact writing.

The lists below name the columns that are exported and imported. How a column is read and written
depends on the type of its model field. Reading accepts any value: a value that cannot be used is
kept in the metadata as ``original_<key>``, and unknown keys are kept there too. A line that is not
a JSON object, or lacks what its row cannot do without, raises :class:`UnusableLine`. Writing uses
the plain key if reading it back gives the same stored text. Otherwise it writes the stored text as
the string ``<key>_raw``, so that every digest stays valid. See ``docs/interchange.md``.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import IO, Any
from uuid import UUID, uuid5

from django.contrib.auth.models import User
from django.db import models

from conversations.archive.blobs import DIGEST
from conversations.archive.turns import COLUMNS
from conversations.domain.errors import Rejected
from conversations.domain.messages import say
from conversations.domain.text import (
    dump_json,
    has_more_values,
    instant,
    is_storable,
    load_json,
    storable,
)
from conversations.domain.turns import ROLES, SYSTEM, USER, NewTurn, text_of_blocks
from conversations.models import (
    Attachment,
    ChatEvent,
    Compaction,
    JournalGap,
    Rewind,
    Session,
    SessionSkill,
    Turn,
    Workspace,
)

from .lines import MAX_ITEM_VALUES, is_uuid, load_given

MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_NUMBER = 2**63 - 1
# A number as a time is in seconds since 1970, or in milliseconds from this number on.
MIN_MILLISECONDS = 10**11

# The namespace of uuids for sessions that have none in the file.
NAMESPACE = UUID("6f0a4a0c-5a9e-5d0e-9d53-2f1d8f7c9b11")

# The columns that are exported and imported, in their order in a line.

SESSION_COLUMNS = (
    "uuid", "workspace", "owner", "key", "former_key", "channel", "title", "title_is_chosen",
    "model", "system_prompt", "instructions", "state", "state_turn", "floor_turn", "parent",
    "fork_turn", "created_at", "last_active_at", "expires_at", "expired_at", "archived_at",
    "pinned_at", "turn_count", "last_seq", "turn_digest", "event_digest", "journal_turn",
    "input_tokens", "output_tokens", "cached_tokens", "cost_microusd", "metadata",
)  # fmt: skip
TURN_COLUMNS = tuple(name for name in COLUMNS if name != "digest")
EVENT_COLUMNS = ("seq", "event_type", "payload", "turn_number", "created_at")
ATTACHMENT_COLUMNS = (
    "uuid", "turn_number", "name", "kind", "media_type", "size", "width", "height", "pages",
    "tokens", "added_by", "created_at", "digest",
)  # fmt: skip
# The columns of the records that a session has besides its turns, events and attachments.
MARKER_COLUMNS: dict[type[models.Model], tuple[str, ...]] = {
    Rewind: (
        "from_turn", "to_turn", "from_seq", "to_seq", "back_to", "reason", "actor", "created_at",
    ),
    JournalGap: ("from_turn", "to_turn", "after_seq"),
    SessionSkill: (
        "name", "path", "content", "digest", "turn_number", "loaded_at", "metadata",
    ),
    Compaction: (
        "uuid", "from_turn", "to_turn", "floor_before", "summary", "model", "reason",
        "before_turns", "after_turns", "before_tokens", "after_tokens", "actor", "created_at",
        "undone_at", "undone_by", "metadata",
    ),
}  # fmt: skip

# Columns whose key in a line differs from their name.
KEYS = {"turn_number": "turn", "turn_count": "turns", "last_seq": "events"}


class UnusableLine(Rejected):
    """A line that cannot be imported at all; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLine:
    """The values of a session line.

    ``uuid`` is None if the line has none. ``journal_turn`` is None if the line does not say which
    turns the journal covers. ``turns`` and ``events`` are None and the digests empty if Loom Web
    did not export the file. ``columns`` are the other columns of the table. ``odd`` are the keys
    whose values could not be used as they are."""

    uuid: UUID | None
    workspace: str
    owner: str
    parent: UUID | None
    journal_turn: int | None
    turns: int | None
    events: int | None
    turn_digest: str
    event_digest: str
    columns: dict[str, Any]
    odd: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class EventLine:
    """The values of an event line, without its seq."""

    event_type: str
    payload: str
    turn_number: int | None
    created_at: datetime | None


def read_lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Yield the number and bytes of each line that is not blank; None for a line too long."""
    number = 0
    while raw := stream.readline(MAX_LINE_BYTES):
        number += 1
        if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
            while (skipped := stream.readline(MAX_LINE_BYTES)) and not skipped.endswith(b"\n"):
                pass
            yield number, None
            continue
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if raw.strip():
            yield number, raw


def parse_line(raw: bytes) -> Any:
    """Return the line's JSON value. Raise UnusableLine.

    Bytes that are not UTF-8 become lone surrogates, which are kept exactly, like other text that
    cannot be stored."""
    text = raw.decode("utf-8", "surrogateescape")
    if has_more_values(text, MAX_ITEM_VALUES):
        raise UnusableLine("it has more than %(limit)s values", limit=f"{MAX_ITEM_VALUES:,}")
    try:
        return load_json(text)
    except ValueError as error:
        raise UnusableLine("not JSON (%(error)s)", error=str(error)) from error


def parse_object(raw: bytes | None) -> dict[str, Any]:
    """Return the line's JSON object. Raise UnusableLine."""
    if raw is None:
        raise UnusableLine("longer than %(size)s MiB", size=MAX_LINE_BYTES // 2**20)
    value = parse_line(raw)
    if not isinstance(value, dict):
        raise UnusableLine("not an object but %(type)s", type=type(value).__name__)
    return value


def parse_moment(value: Any) -> datetime | None:
    """Parse a time: ISO 8601 (UTC if it has no offset) or a number since 1970."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value.strip())
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value / 1000 if abs(value) >= MIN_MILLISECONDS else value
            return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None


def session_uuid(value: Any) -> UUID | None:
    """Return the uuid in a line, or a uuid made from the value if it is another kind of id."""
    if value in (None, ""):
        return None
    return UUID(value) if is_uuid(value) else uuid5(NAMESPACE, f"session {dump_json(value)}")


class _LineKeys:
    """The keys of one line, each removed when it is read.

    ``left`` are the keys not read so far. ``odd`` are the values that could not be used as they
    are."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.left = {name: item for name, item in value.items() if name != "type"}
        self.odd: dict[str, Any] = {}

    def pop(self, name: str) -> Any:
        return self.left.pop(name, None)

    def text(self, name: str, *, limit: int | None = None) -> str:
        return self.optional_text(name, limit=limit) or ""

    def optional_text(self, name: str, *, limit: int | None) -> str | None:
        value = text = self.pop(name)
        if isinstance(text, int | float) and not isinstance(text, bool):
            value = text = str(text)
        text = storable(text)[:limit] if isinstance(text, str) else None
        if text != value:
            self.odd[name] = value
        return text

    def number(self, name: str) -> int | None:
        value = self.pop(name)
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if type(whole) is int and 0 <= whole <= MAX_NUMBER:
            return whole
        if value is not None:
            self.odd[name] = whole
        return None

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.pop(name)
        if value in (0, 1):  # as False and True are
            return bool(value)
        if value is not None:
            self.odd[name] = value
        return default

    def moment(self, name: str) -> datetime | None:
        value = self.pop(name)
        moment = parse_moment(value)
        if moment is None and value not in (None, ""):
            self.odd[name] = value
        return moment

    def columns(self, model: type[models.Model], names: Iterable[str]) -> dict[str, Any]:
        return {name: _column_reader(model, name)(self) for name in names if name != "metadata"}

    def numbers(self, *names: str) -> dict[str, int]:
        """Return these columns. Raise UnusableLine if one is missing or not a number."""
        numbers = {name: self.number(KEYS.get(name, name)) for name in names}
        missing = ", ".join(KEYS.get(name, name) for name in names if numbers[name] is None)
        if missing:
            raise UnusableLine("no number for %(names)s", names=missing)
        return {name: number for name, number in numbers.items() if number is not None}

    def raw_text(self, name: str) -> str | None:
        """Return the stored JSON text from ``<name>_raw``, or None if the line has none."""
        raw = self.left.get(f"{name}_raw")
        if not isinstance(raw, str) or not is_storable(raw):
            return None
        del self.left[f"{name}_raw"]
        return raw

    def json_text(self, name: str) -> str | None:
        """Return the text to store for a JSON value. The value may be a string of JSON."""
        raw = self.raw_text(name)
        value = None if raw is not None else self.pop(name)
        if value is None:
            return raw
        opened, (fits, _) = _opened(value), JSON_COLUMNS[name]
        if fits(opened):
            return dump_json(opened)
        self.odd[name] = value
        return None

    def original(self) -> dict[str, Any]:
        return self.left | {f"original_{name}": value for name, value in self.odd.items()}

    def metadata(self, extra: dict[str, Any] | None = None) -> str:
        """Return the line's metadata with all unread and unusable values. Call this last."""
        text = self.json_text("metadata")
        return add_metadata("{}" if text is None else text, self.original() | (extra or {}))


@cache  # An import reads millions of values, and inspecting a field takes longer than reading one.
def _column_reader(model: type[models.Model], name: str) -> Callable[[_LineKeys], Any]:
    """Return a function that reads the value of a column from a line.

    If the line has no usable value, it returns None for a nullable column, else the default."""
    field, key = model._meta.get_field(name), KEYS.get(name, name)
    match field:
        case models.UUIDField():
            return lambda keys: session_uuid(keys.pop(key))
        case models.ForeignKey():
            return lambda keys: keys.text(key)
        case models.DateTimeField():
            return lambda keys: keys.moment(key)
        case models.BooleanField():
            return lambda keys: keys.flag(key, default=field.default)
        case models.IntegerField():
            default = None if field.null else field.default if field.has_default() else 0
            return lambda keys: default if (number := keys.number(key)) is None else number
    limit = getattr(field, "max_length", None)
    if field.null:
        return lambda keys: keys.optional_text(key, limit=limit)
    return lambda keys: keys.text(key, limit=limit)


def _opened(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return load_given(value)
        except ValueError:
            return value
    return value


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_object_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


# Columns of JSON text: a check of their values, and the text for which a line omits the key.
JSON_COLUMNS: dict[str, tuple[Callable[[Any], bool], str | None]] = {
    "blocks": (_is_object_list, None),
    "tool_calls": (_is_object_list, None),
    "metadata": (_is_object, "{}"),
    "state": (_is_object, "{}"),
    "payload": (_is_object, None),
}


def add_metadata(text: str, extra: dict[str, Any]) -> str:
    """Return the metadata with more keys. A new key that exists already gets an underscore."""
    if not extra:
        return text
    try:
        metadata = load_given(text) if text else {}
    except ValueError:
        metadata = None
    if not isinstance(metadata, dict):
        metadata = {"metadata_raw": text}
    for name, value in extra.items():
        free = name
        while free in metadata:
            free += "_"
        metadata[free] = value
    return dump_json(metadata)


def read_session(value: dict[str, Any]) -> SessionLine:
    keys = _LineKeys(value)
    uuids: dict[str, UUID | None] = {}
    for name in ("uuid", "parent"):
        text = keys.pop(name)
        uuids[name] = session_uuid(text)
        if uuids[name] is not None and not is_uuid(text):
            keys.odd[name] = text
    state = value.get("state")
    if isinstance(state, dict) and {"v", "marks"} <= state.keys():
        keys.pop("state")  # the state of an export, which is rebuilt from the rows
    keys.pop("state_turn")
    keys.pop("version")
    columns = keys.columns(Session, _OWN_COLUMNS)
    columns["title_is_chosen"] = keys.flag("title_is_chosen", default=bool(columns["title"]))
    for name in ("key", "former_key"):
        columns[name] = columns[name] or None
    columns["channel"] = columns["channel"] or "import"
    return SessionLine(
        uuid=uuids["uuid"],
        parent=uuids["parent"],
        workspace=keys.text("workspace"),
        owner=keys.text("owner"),
        journal_turn=keys.number("journal_turn"),
        turns=keys.number("turns"),
        events=keys.number("events"),
        turn_digest=keys.text("turn_digest", limit=64),
        event_digest=keys.text("event_digest", limit=64),
        columns=columns | {"metadata": keys.metadata()},
        odd=tuple(keys.odd),
    )


_OWN_COLUMNS = tuple(
    name
    for name in SESSION_COLUMNS
    if name not in SessionLine.__dataclass_fields__
    and name not in ("title_is_chosen", "state", "state_turn", "turn_count", "last_seq")
)


def read_turn(value: dict[str, Any]) -> tuple[Any, NewTurn, tuple[str, ...]]:
    """Return the number in the line, of any type, the turn, and the keys with unusable values.

    Raise RecursionError if the values are nested too deeply."""
    keys = _LineKeys(value)
    number, role = keys.pop("number"), keys.pop("role")
    extra: dict[str, Any] = {}
    if role not in ROLES:
        keys.odd["role"] = role
        role = SYSTEM
    blocks, tool_calls = keys.json_text("blocks"), keys.json_text("tool_calls")
    content = keys.pop("content")
    if content is None:
        content = ""
    elif _is_object_list(content) and content:
        blocks = blocks if blocks is not None else dump_json(content)
        content = text_of_blocks(content)
    elif not isinstance(content, str):
        keys.odd["content"] = content
        content = dump_json(content)
    if not is_storable(content):
        # Blocks keep the exact text for the model: they are JSON, which escapes characters that
        # cannot be stored in a text column.
        if role == USER and blocks is None and tool_calls is None:
            blocks = dump_json([{"type": "text", "text": content}])
        else:
            extra["content_escaped"] = content
    read_already = ("role", "content", "blocks", "tool_calls", "number")
    columns = keys.columns(Turn, (name for name in TURN_COLUMNS if name not in read_already))
    turn = NewTurn(
        role=role,
        content=storable(content),
        blocks=blocks,
        tool_calls=tool_calls,
        metadata=keys.metadata(extra),
        **columns,
    )
    return number, turn, tuple(keys.odd)


def read_event(value: dict[str, Any]) -> tuple[Any, EventLine, tuple[str, ...]]:
    """Return the seq in the line, of any type, the event, and the keys with unusable values.

    A payload that cannot be parsed is kept as it is. Because an event has no metadata, unknown keys
    go into the payload if that is an object."""
    keys = _LineKeys(value)
    seq = keys.pop("seq")
    columns = keys.columns(ChatEvent, ("turn_number", "created_at", "event_type"))
    if "event_type" not in value:
        keys.odd["event_type"] = None
    payload = keys.raw_text("payload")
    if payload is None and "payload" in keys.left:
        original = keys.pop("payload")
        is_text = (
            isinstance(original, str) and is_storable(original) and _is_object(_opened(original))
        )
        payload = original if is_text else dump_json(original)
    elif payload is None and keys.left:
        payload = "{}"
    odd = tuple(keys.odd) + (("payload",) if payload is None else ())
    extra = keys.original()
    if extra and (payload is None or _is_object(_opened(payload))):
        payload = add_metadata(payload or "{}", extra)
    elif extra:
        odd = tuple(say("%(name)s (left out)", name=name) for name in extra)
    columns |= {
        "event_type": columns["event_type"] or "unknown",
        "payload": "{}" if payload is None else payload,
    }
    return seq, EventLine(**columns), odd


def read_marker(model: type[models.Model], value: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a rewind, a gap, a skill or a compaction, with users as usernames.

    Raise UnusableLine if a required number, text or name is missing."""
    keys, names = _LineKeys(value), MARKER_COLUMNS[model]
    required = [
        name for name in ("turn_number", "from_turn", "to_turn", "from_seq", "to_seq", "after_seq")
        if name in names
    ]  # fmt: skip
    columns = keys.numbers(*required)
    columns |= keys.columns(model, (name for name in names if name not in required))
    if model is SessionSkill and not (columns["name"] and isinstance(value.get("content"), str)):
        raise UnusableLine("a skill needs a name and a content")
    if model is Compaction and not str(columns["summary"]).strip():
        raise UnusableLine("a compaction needs a summary")
    return columns | ({"metadata": keys.metadata()} if "metadata" in names else {})


def read_attachment(value: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of an attachment.

    ``data`` and ``sent_data`` are the contents as base64, or empty if they are missing.
    ``sent_digest`` is empty if the model was sent the original content. Raise UnusableLine for an
    attachment without a uuid, a digest or a turn."""
    keys = _LineKeys(value)
    columns: dict[str, Any] = keys.numbers("turn_number")
    columns["uuid"] = session_uuid(keys.pop("uuid"))
    texts = ("digest", "sent_digest", "data", "sent_data", "name", "added_by")
    columns |= {name: keys.text(name) for name in texts}
    columns["sent_type"] = keys.text("sent_type", limit=127)
    digests = (columns["digest"], columns["sent_digest"] or columns["digest"])
    if columns["uuid"] is None or not all(map(DIGEST.fullmatch, digests)):
        raise UnusableLine("an attachment needs a uuid and a digest")
    others = (name for name in ATTACHMENT_COLUMNS if name not in columns)
    return columns | keys.columns(Attachment, others)


def write_line(kind: str, row: Any, names: Iterable[str], **more: Any) -> dict[str, Any]:
    """Return the line of a row, without columns that are None. ``more`` follows the type."""
    line: dict[str, Any] = {"type": kind, **more}
    for name in names:
        value, key = getattr(row, name), KEYS.get(name, name)
        if name in JSON_COLUMNS:
            fits, left_out = JSON_COLUMNS[name]
            if value == left_out:
                continue
            try:
                read = json.loads(value or "null")
                is_exact = fits(read) and dump_json(read) == value
                if is_exact and ("NaN" in value or "Infinity" in value):
                    json.dumps(read, allow_nan=False)  # NaN can be read back but is not JSON
            except (ValueError, RecursionError):
                is_exact = False
            line |= {name: read} if is_exact else {f"{name}_raw": value}
            continue
        match value:
            case None:
                continue
            case datetime():
                value = instant(value)
            case User():
                value = value.get_username()
            case Workspace():
                value = value.slug
            case Session():
                value = str(value.uuid)
            case UUID():
                value = str(value)
        line[key] = value
    return line
