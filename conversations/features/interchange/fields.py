"""The interchange file: one JSON object a line, read tolerantly, written exactly.

Reading never fails on a value: what cannot be used where it stands is kept in the
metadata as ``original_<key>``, and unknown keys are kept there too. Only a line
that is no JSON object is :class:`Unusable`. Writing uses the plain key where
reading it back gives the same stored text, and ``<key>_raw`` with the stored text
as a string otherwise, so that every digest survives. See ``docs/interchange.md``.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, BinaryIO
from uuid import UUID, uuid5

from conversations.domain.text import dump_json, is_storable, load_json, storable
from conversations.domain.turns import ROLES, SYSTEM, USER, NewTurn, text_of_blocks

MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_NUMBER = 2**63 - 1
MILLISECONDS_FROM = 10**11
"""Bare numbers for a time are seconds since 1970, from here on milliseconds."""

NAMESPACE = UUID("6f0a4a0c-5a9e-5d0e-9d53-2f1d8f7c9b11")
"""From which uuids are made for sessions that come without one."""


_DIGEST = re.compile(r"[0-9a-f]{64}")


class Unusable(ValueError):
    """A line of which nothing can be kept; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLine:
    """What a session line says. ``metadata`` is JSON text. ``uuid`` is None where
    the line names none; ``journal_turn`` where the file says nothing of coverage;
    ``turns``, ``events`` and the digests where it was not made by an export."""

    uuid: UUID | None
    workspace: str
    owner: str
    key: str | None
    channel: str
    title: str
    title_is_chosen: bool
    model: str
    system_prompt: str
    instructions: str
    floor_turn: int
    journal_turn: int | None
    turns: int | None
    events: int | None
    turn_digest: str
    event_digest: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_microusd: int
    parent: UUID | None
    fork_turn: int | None
    created_at: datetime | None
    last_active_at: datetime | None
    expires_at: datetime | None
    archived_at: datetime | None
    pinned_at: datetime | None
    metadata: str
    odd: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLine:
    """A turn line. ``number`` is what the line says, whatever it is; ``odd`` names
    the keys whose values could not be used as they are."""

    number: Any
    turn: NewTurn
    odd: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """An event line. ``payload`` is JSON text, or whatever text was archived."""

    seq: Any
    event_type: str
    payload: str
    turn: int | None
    created_at: datetime | None
    odd: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindLine:
    from_turn: int
    to_turn: int
    from_seq: int
    to_seq: int
    reason: str
    actor: str
    created_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GapLine:
    from_turn: int
    to_turn: int
    after_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillLine:
    """``digest`` is what the file says of the content; empty: nothing."""

    name: str
    path: str
    content: str
    digest: str
    turn: int
    loaded_at: datetime | None
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLine:
    """``uuid`` is None where the line names none."""

    uuid: UUID | None
    from_turn: int
    to_turn: int
    floor_before: int
    summary: str
    model: str
    reason: str
    before_turns: int
    after_turns: int
    before_tokens: int
    after_tokens: int
    actor: str
    created_at: datetime | None
    undone_at: datetime | None
    undone_by: str
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentLine:
    """Contents are base64, empty: not there. ``sent_digest`` and what belongs to it:
    the copy that the model got, empty: the content itself."""

    uuid: UUID
    turn: int
    name: str
    kind: str
    media_type: str
    size: int
    width: int | None
    height: int | None
    pages: int | None
    tokens: int
    added_by: str
    created_at: datetime | None
    digest: str
    data: str
    sent_digest: str
    sent_type: str
    sent_data: str


def read_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines that are not blank; None for one that is too long."""
    number = 0
    while raw := stream.readline(MAX_LINE_BYTES):
        number += 1
        if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
            while (rest := stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield number, None
            continue
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if raw.strip():
            yield number, raw


def parse_object(raw: bytes | None) -> dict[str, Any]:
    """The line's object. Raises Unusable. Bytes that are no UTF-8 become lone
    surrogates, which are kept exactly like any other text that cannot be stored."""
    if raw is None:
        raise Unusable(f"longer than {MAX_LINE_BYTES // 2**20} MiB")
    try:
        value = load_json(raw.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise Unusable(f"not JSON ({error})") from error
    if not isinstance(value, dict):
        raise Unusable(f"not an object but {type(value).__name__}")
    return value


def parse_moment(value: Any) -> datetime | None:
    """A time as ISO 8601 (without an offset: UTC) or as a number since 1970."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value.strip())
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value / 1000 if abs(value) >= MILLISECONDS_FROM else value
            return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None


def session_uuid(value: Any) -> UUID | None:
    """The uuid that a line names; one made from it where it is another kind of id."""
    if value in (None, ""):
        return None
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        return uuid5(NAMESPACE, f"session {dump_json(value)}")


class _Keys:
    """One line's keys, taken one by one. ``left`` are those nobody asked for,
    ``odd`` the values that could not be used as they are."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.left = {name: found for name, found in value.items() if name != "type"}
        self.odd: dict[str, Any] = {}

    def take(self, name: str) -> Any:
        return self.left.pop(name, None)

    def text(self, name: str, *, limit: int | None = None) -> str:
        return self.optional_text(name, limit=limit) or ""

    def optional_text(self, name: str, *, limit: int | None = None) -> str | None:
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            self.odd[name] = value
            return None
        stored = storable(value)[:limit]
        if stored != value:
            self.odd[name] = value
        return stored

    def number(self, name: str) -> int | None:
        """A whole number from 0 on, None where there is none."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.odd[name] = value
        elif 0 <= value <= MAX_NUMBER:
            return value
        else:
            self.odd[name] = value
        return None

    def moment(self, name: str) -> datetime | None:
        value = self.take(name)
        moment = parse_moment(value)
        if moment is None and value not in (None, ""):
            self.odd[name] = value
        return moment

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.take(name)
        if value is None:
            return default
        if value in (0, 1):  # as False and True are
            return bool(value)
        self.odd[name] = value
        return default

    def json_text(self, name: str, fits: Callable[[Any], bool]) -> str | None:
        """The text to store for a JSON value. A string may hold the JSON itself."""
        raw = self.left.get(f"{name}_raw")
        if isinstance(raw, str) and is_storable(raw):
            del self.left[f"{name}_raw"]
            return raw
        value = self.take(name)
        if value is None:
            return None
        opened = _opened(value)
        if fits(opened):
            return dump_json(opened)
        self.odd[name] = value
        return None

    def metadata(self, extra: dict[str, Any] | None = None) -> str:
        """The line's metadata with all that has no other place. Take this last."""
        text = self.json_text("metadata", _is_object)
        put_aside = {f"original_{name}": value for name, value in self.odd.items()}
        return add_metadata("{}" if text is None else text, self.left | put_aside | (extra or {}))


def _opened(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return load_json(value)
        except ValueError:
            return value
    return value


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_object_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def add_metadata(text: str, extra: dict[str, Any]) -> str:
    """Metadata with more keys; a key that is taken gets an underscore."""
    if not extra:
        return text
    try:
        metadata = load_json(text, default={})
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
    keys = _Keys(value)
    given = keys.take("uuid")
    uuid = session_uuid(given)
    if uuid is not None and not _is_uuid(given):
        keys.odd["uuid"] = given
    parent = keys.take("parent")
    parent_uuid = session_uuid(parent)
    if parent_uuid is not None and not _is_uuid(parent):
        keys.odd["parent"] = parent
    title = keys.text("title", limit=200)
    keys.take("state_turn")
    if _is_register(value.get("state")):
        keys.take("state")
    fields: dict[str, Any] = {
        "uuid": uuid,
        "workspace": keys.text("workspace"),
        "owner": keys.text("owner"),
        "key": keys.text("key", limit=255) or None,
        "channel": keys.text("channel", limit=32) or "import",
        "title": title,
        "title_is_chosen": keys.flag("title_is_chosen", default=bool(title)),
        "model": keys.text("model", limit=120),
        "system_prompt": keys.text("system_prompt"),
        "instructions": keys.text("instructions"),
        "parent": parent_uuid,
        "fork_turn": keys.number("fork_turn"),
        "journal_turn": keys.number("journal_turn"),
        "turns": keys.number("turns"),
        "events": keys.number("events"),
        "turn_digest": keys.text("turn_digest", limit=64),
        "event_digest": keys.text("event_digest", limit=64),
        "floor_turn": keys.number("floor_turn") or 1,
    }
    for name in ("input_tokens", "output_tokens", "cached_tokens", "cost_microusd"):
        fields[name] = keys.number(name) or 0
    for name in ("created_at", "last_active_at", "expires_at", "archived_at", "pinned_at"):
        fields[name] = keys.moment(name)
    keys.take("version")
    metadata = keys.metadata()
    return SessionLine(**fields, metadata=metadata, odd=tuple(keys.odd))


def _is_register(state: Any) -> bool:
    """Whether this is a session state of ours, which the rows will give again."""
    return isinstance(state, dict) and {"v", "marks"} <= state.keys()


def _is_uuid(value: Any) -> bool:
    try:
        return bool(UUID(value))
    except (ValueError, AttributeError, TypeError):
        return False


def read_turn(value: dict[str, Any]) -> TurnLine:
    """Raises Unusable only for values that are nested too deeply to be kept."""
    keys = _Keys(value)
    number = keys.take("number")
    role = keys.take("role")
    extra: dict[str, Any] = {}
    if role not in ROLES:
        keys.odd["role"] = role
        role = SYSTEM
    blocks = keys.json_text("blocks", _is_object_list)
    tool_calls = keys.json_text("tool_calls", _is_object_list)
    content, found_blocks = _read_content(keys)
    blocks = blocks if blocks is not None else found_blocks
    if not is_storable(content):
        if role == USER and blocks is None and tool_calls is None:
            blocks = dump_json([{"type": "text", "text": content}])
        else:
            extra["content_escaped"] = content
    turn = NewTurn(
        role=role,
        content=storable(content),
        blocks=blocks,
        tool_calls=tool_calls,
        tool_call_id=keys.optional_text("tool_call_id", limit=255),
        tool_name=keys.optional_text("tool_name", limit=255),
        token_count=keys.number("token_count") or 0,
        stop_reason=keys.text("stop_reason", limit=64),
        complete=keys.flag("complete", default=True),
        created_at=keys.moment("created_at"),
    )
    return TurnLine(
        number=number, turn=replace(turn, metadata=keys.metadata(extra)), odd=tuple(keys.odd)
    )


def _read_content(keys: _Keys) -> tuple[str, str | None]:
    """The text, and the blocks where the content is given as a list of those."""
    value = keys.take("content")
    if value is None:
        return "", None
    if isinstance(value, str):
        return value, None
    if _is_object_list(value) and value:
        return text_of_blocks(value), dump_json(value)
    keys.odd["content"] = value
    return dump_json(value), None


def read_event(value: dict[str, Any]) -> EventLine:
    """A payload that cannot be understood is kept as it is. An event has no
    metadata: what has no other place goes into the payload, if that is an object."""
    keys = _Keys(value)
    seq = keys.take("seq")
    turn = keys.number("turn")
    created_at = keys.moment("created_at")
    event_type = keys.text("event_type", limit=32) or "unknown"
    if "event_type" not in value:
        keys.odd["event_type"] = None
    payload = _read_payload(keys)
    odd = tuple(keys.odd) + (("payload",) if payload is None else ())
    extra = keys.left | {f"original_{name}": item for name, item in keys.odd.items()}
    if extra and (payload is None or _is_object(_try_load(payload))):
        payload = add_metadata(payload or "{}", extra)
    elif extra:
        odd = tuple(f"{name} (left out)" for name in extra)
    return EventLine(
        seq=seq,
        event_type=event_type,
        payload="{}" if payload is None else payload,
        turn=turn,
        created_at=created_at,
        odd=odd,
    )


def _read_payload(keys: _Keys) -> str | None:
    raw = keys.left.get("payload_raw")
    if isinstance(raw, str) and is_storable(raw):
        del keys.left["payload_raw"]
        return raw
    if "payload" not in keys.left:
        return "{}" if keys.left else None
    value = keys.take("payload")
    if isinstance(value, str) and is_storable(value) and _is_object(_opened(value)):
        return value
    return dump_json(value)


def _try_load(text: str | None) -> Any:
    try:
        return load_json(text)
    except ValueError:
        return None


def read_rewind(value: dict[str, Any]) -> RewindLine:
    """Raises Unusable for numbers that are missing or none."""
    keys = _Keys(value)
    numbers = {name: keys.number(name) for name in ("from_turn", "to_turn", "from_seq", "to_seq")}
    return RewindLine(
        **_required(numbers),
        reason=keys.text("reason", limit=16),
        actor=keys.text("actor"),
        created_at=keys.moment("created_at"),
    )


def read_gap(value: dict[str, Any]) -> GapLine:
    """Raises Unusable for numbers that are missing or none."""
    keys = _Keys(value)
    return GapLine(
        **_required({name: keys.number(name) for name in ("from_turn", "to_turn", "after_seq")})
    )


def read_skill(value: dict[str, Any]) -> SkillLine:
    """Raises Unusable for one without a name, a text or its turn."""
    keys = _Keys(value)
    numbers = _required({"turn": keys.number("turn")})
    name = keys.text("name", limit=120)
    content = keys.optional_text("content")
    if not name or content is None:
        raise Unusable("a skill has a name and a content")
    return SkillLine(
        name=name,
        path=keys.text("path", limit=1024),
        content=content,
        digest=keys.text("digest", limit=64),
        turn=numbers["turn"],
        loaded_at=keys.moment("loaded_at"),
        metadata=keys.metadata(),
    )


def read_compaction(value: dict[str, Any]) -> CompactionLine:
    """Raises Unusable for one without a summary or its turns."""
    keys = _Keys(value)
    numbers = _required({name: keys.number(name) for name in ("from_turn", "to_turn")})
    summary = keys.text("summary")
    if not summary.strip():
        raise Unusable("a compaction has a summary")
    uuid = keys.take("uuid")
    sizes = ("before_turns", "after_turns", "before_tokens", "after_tokens")
    return CompactionLine(
        uuid=session_uuid(uuid),
        **numbers,
        floor_before=keys.number("floor_before") or 1,
        summary=summary,
        model=keys.text("model", limit=120),
        reason=keys.text("reason", limit=12),
        **{name: keys.number(name) or 0 for name in sizes},
        actor=keys.text("actor"),
        created_at=keys.moment("created_at"),
        undone_at=keys.moment("undone_at"),
        undone_by=keys.text("undone_by"),
        metadata=keys.metadata(),
    )


def read_attachment(value: dict[str, Any]) -> AttachmentLine:
    """Raises Unusable for one without a uuid, a digest or its turn."""
    keys = _Keys(value)
    numbers = _required({"turn": keys.number("turn")})
    uuid, digest = session_uuid(keys.take("uuid")), keys.text("digest")
    sent_digest = keys.text("sent_digest")
    if uuid is None or not all(_DIGEST.fullmatch(d) for d in (digest, sent_digest or digest)):
        raise Unusable("an attachment has a uuid and a digest")
    return AttachmentLine(
        uuid=uuid,
        **numbers,
        name=keys.text("name", limit=1024),
        kind=keys.text("kind", limit=12),
        media_type=keys.text("media_type", limit=127),
        size=keys.number("size") or 0,
        width=keys.number("width"),
        height=keys.number("height"),
        pages=keys.number("pages"),
        tokens=keys.number("tokens") or 0,
        added_by=keys.text("added_by", limit=150),
        created_at=keys.moment("created_at"),
        digest=digest,
        data=keys.text("data"),
        sent_digest=sent_digest,
        sent_type=keys.text("sent_type", limit=127),
        sent_data=keys.text("sent_data"),
    )


def _required(numbers: dict[str, int | None]) -> dict[str, int]:
    found = {name: number for name, number in numbers.items() if number is not None}
    if len(found) < len(numbers):
        missing = ", ".join(name for name in numbers if name not in found)
        raise Unusable(f"no number for {missing}")
    return found


@dataclass(frozen=True, slots=True)
class JsonField:
    """How a JSON text column is written: under ``name``, if what is read back is
    the same text, else as a string under ``name_raw``. ``plain`` is left out."""

    name: str
    fits: Callable[[Any], bool]
    plain: str | None = None

    def write(self, text: str | None) -> dict[str, Any]:
        if text == self.plain:
            return {}
        value = _exact_value(text) if text is not None else None
        return {self.name: value} if self.fits(value) else {f"{self.name}_raw": text}


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_strict = json.JSONDecoder(parse_constant=_refuse_constant)


def _exact_value(text: str) -> Any:
    """The value, if writing it gives the same text again."""
    try:
        value = _strict.decode(text)
        return value if dump_json(value) == text else None
    except (ValueError, RecursionError):
        return None


BLOCKS = JsonField("blocks", _is_object_list)
TOOL_CALLS = JsonField("tool_calls", _is_object_list)
METADATA = JsonField("metadata", _is_object, "{}")
STATE = JsonField("state", _is_object, "{}")
PAYLOAD = JsonField("payload", _is_object)
