"""The rows that a person sees: event types and their payloads.

A payload is stored as JSON with its version (``"v": 1``). Reading is tolerant: journals of earlier
versions may use other key names, and callers show a payload that cannot be understood as a
:class:`Fallback`. ``parse_payload`` is the only reader, and ``dump_payload`` is the only writer.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any

from .messages import Message, message_data, restore_message
from .text import dump_json, load_json, text_of

PAYLOAD_VERSION = 1

USER_MESSAGE, ASSISTANT_TEXT = "user_message", "assistant_text"
TOOL_CALL_STARTED, TOOL_CALL_COMPLETED = "tool_call_started", "tool_call_completed"
CONTENT_INDICATOR, TURN_SEPARATOR, INFO = "content_indicator", "turn_separator", "info"

APPROVAL = "approval"  # The kind of notices about a call that waits for a person.

# The codes of these notices. The data of APPROVAL_ASKED is an ``ApprovalRequest``. The data of
# APPROVAL_DECIDED is ``{"call", "call_id", "decision", "by", "reason"}``.
APPROVAL_ASKED, APPROVAL_DECIDED = "approval_asked", "approval_decided"

# The code of the notice that files were put back. Its data is ``{"revert", "files", "left"}``: the
# uuid of the revert, the number of files that were put back, and the number of those that were not.
REVERTED = "reverted"

# The code of the notice that the turns before it came from another program. Its data is
# ``{"turns"}``, their number. In the metadata of these turns it is the key of their format.
BROUGHT_ALONG = "brought_along"
# The codes of the notices that later requests leave out turns, and that they include them again.
# Their data is ``{"from", "to"}``, numbers of turns.
SET_ASIDE, INCLUDED = "set_aside", "included"
# The code of the notice that a person withdrew the queued message of another person. Its detail is
# the text of the message. Its data is ``{"run"}``, the uuid of the message's run.
WITHDRAWN = "message_withdrawn"
COMPACTED = "compacted"  # The code of the notice of a summary. Its data holds the summary.


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """A person's message.

    ``by`` is the name of its author if that is not the session's owner.
    """

    text: str
    client_id: str = ""
    by: str = ""
    attachments: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantText:
    """A text of the model, with its thinking.

    ``thinking_ms`` is the time that the model spent on thinking. ``partial`` means that the text
    was cut off.
    """

    text: str
    thinking: str = ""
    thinking_ms: int | None = None
    partial: bool = False
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStarted:
    """The start of a tool call. ``call`` is the uuid of its record, or empty without a record."""

    call_id: str
    name: str
    arguments: Any = None
    call: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallCompleted:
    """The end of a tool call.

    ``ok`` is None if the outcome was not recorded. If ``output_chars`` is set, the output has that
    many characters and ``output`` is only its beginning; the turn has all of it. ``state`` is empty
    if the call is ``completed``. ``diff`` is a unified diff of the changes. ``decided_by`` is the
    person who allowed or denied the call.
    """

    call_id: str
    name: str
    ok: bool | None = None
    output: str = ""
    error: str = ""
    arguments: Any = None
    duration_ms: int | None = None
    call: str = ""
    state: str = ""
    output_chars: int | None = None
    exit_code: int | None = None
    diff: str = ""
    decision: str = ""
    decided_by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentIndicator:
    """Content that is not text.

    ``kind`` is image, document or file. ``size`` is in bytes. ``attachment`` is the uuid of the
    attachment that the row shows, or empty if there is none.
    """

    label: str
    kind: str = "file"
    media_type: str = ""
    size: int | None = None
    call_id: str = ""
    attachment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSeparator:
    """The end of a run. ``state`` is the run's state.

    The token counts are those that the provider reported. ``input_tokens`` is the whole prompt, and
    ``cached_tokens`` is the part of it that was read from the cache.
    """

    run: str = ""
    state: str = "completed"
    stop_reason: str = ""
    model: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: str = ""
    duration_ms: int | None = None
    first_token_ms: int | None = None
    is_demo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """A notice.

    ``text`` is a message (``domain.messages``). Its English text is stored, and its template and
    values are stored beside it as ``said``. ``kind`` is notice, error, interrupted, or the kind of
    a notice about a tool call (approval, question). ``code`` is stable, for programs. ``action`` is
    the action that the row offers: ``retry``, ``continue`` or none. ``data`` is shown beside the
    text; its shape depends on ``code``.
    """

    text: str
    kind: str = "notice"
    code: str = ""
    detail: str = ""
    action: str = ""
    run: str = ""
    data: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """The replacement for a stored row that cannot be read. ``raw`` is its stored text."""

    reason: str
    raw: str


type Payload = (
    UserMessage
    | AssistantText
    | ToolCallStarted
    | ToolCallCompleted
    | ContentIndicator
    | TurnSeparator
    | Info
)


class MalformedPayload(ValueError):
    """A stored payload cannot be understood. The text of the error says why."""


_TYPES: dict[type[Payload], str] = {
    UserMessage: USER_MESSAGE,
    AssistantText: ASSISTANT_TEXT,
    ToolCallStarted: TOOL_CALL_STARTED,
    ToolCallCompleted: TOOL_CALL_COMPLETED,
    ContentIndicator: CONTENT_INDICATOR,
    TurnSeparator: TURN_SEPARATOR,
    Info: INFO,
}
_CLASSES = {name: cls for cls, name in _TYPES.items()}
EVENT_TYPES = tuple(_CLASSES)

# Field → its keys in journals of all versions, if its name is not the only key.
_NAMES: dict[type[Payload], dict[str, tuple[str, ...]]] = {
    UserMessage: {"text": ("text", "content", "message")},
    AssistantText: {"text": ("text", "content", "markup")},
    ToolCallStarted: {
        "call_id": ("call_id", "tool_call_id", "id"),
        "name": ("name", "tool_name"),
        "arguments": ("arguments", "args", "input"),
    },
    ToolCallCompleted: {
        "call_id": ("call_id", "tool_call_id", "id"),
        "name": ("name", "tool_name"),
        "ok": ("ok", "success"),
        "output": ("output", "result"),
        "arguments": ("arguments", "args", "input"),
        "duration_ms": ("duration_ms", "elapsed_ms"),
    },
    ContentIndicator: {
        "label": ("label", "text", "name", "content_blocks"),
        "kind": ("kind", "type"),
        "call_id": ("call_id", "tool_call_id"),
    },
    TurnSeparator: {
        "output_tokens": ("output_tokens", "tokens"),
        "duration_ms": ("duration_ms", "elapsed_ms"),
    },
    Info: {"text": ("text", "message", "content", "markup")},
}

# The field that a payload must have.
_REQUIRED = {UserMessage: "text", AssistantText: "text", ToolCallStarted: "name", Info: "text"}

# A style tag in texts for a terminal: ``[dim]…[/dim]``.
_STYLE = re.compile(r"(?<!\\)\[(?:/|/?[a-zA-Z#@][^\[\]]*)\]")


def _number(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return int(value)
    except (OverflowError, ValueError):  # Python's JSON parser accepts inf and NaN.
        return None


# A field's type → a function that reads its value from JSON. A value of another type counts as
# missing.
_READERS: dict[Any, Callable[[Any], Any]] = {
    str: text_of,
    int | None: _number,
    bool: lambda value: value is True,
    bool | None: lambda value: value if isinstance(value, bool) else None,
    list[Any]: lambda value: value if isinstance(value, list) else [],
    dict[str, Any] | None: lambda value: value if isinstance(value, dict) else None,
    Any: lambda value: value,
}

# The replacement for an empty text, if it is not the field's default.
_REPLACEMENTS = {(ToolCallCompleted, "name"): "tool", (ContentIndicator, "label"): "content"}


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _read_fields(cls: type[Payload]) -> Iterator[tuple[str, tuple[str, ...], Any, Any]]:
    for f in fields(cls):
        has_default = f.type is str and not _is_required(f)
        empty = _REPLACEMENTS.get((cls, f.name), f.default if has_default else "")
        yield f.name, _NAMES[cls].get(f.name, (f.name,)), _READERS[f.type], empty


# For each field: name, keys, reader and replacement for "". Computed once, because every row that
# is shown or streamed is read with it.
_FIELDS = {cls: list(_read_fields(cls)) for cls in _TYPES}


def dump_payload(payload: Payload) -> str:
    """Return the JSON text to store."""
    return dump_json(payload_data(payload))


def payload_data(payload: Payload) -> dict[str, Any]:
    """Return the version, the required fields, and the other fields that are not empty."""
    all_values = {f.name: getattr(payload, f.name) for f in fields(payload)}
    values = {k: v for k, v in all_values.items() if v not in ("", None, [], False)}
    values |= {f.name: getattr(payload, f.name) for f in fields(payload) if _is_required(f)}
    if isinstance(payload, ToolCallCompleted) and payload.ok is False:
        values["ok"] = False
    if isinstance(payload, Info) and isinstance(payload.text, Message) and payload.text.values:
        values["said"] = message_data(payload.text)
    return {"v": PAYLOAD_VERSION} | values


def parse_payload(event_type: str, text: str) -> Payload:
    """Read a stored payload. Raises :class:`MalformedPayload` with the reason."""
    cls = _CLASSES.get(event_type)
    if cls is None:
        raise MalformedPayload(f"unknown event type {event_type!r}")
    try:
        value = load_json(text, default={})
    except ValueError as error:
        raise MalformedPayload(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise MalformedPayload(f"not an object but {type(value).__name__}")
    required = _REQUIRED.get(cls)
    if cls is AssistantText and value.get("thinking") not in (None, ""):
        required = None
    values: dict[str, Any] = {}
    for name, keys, read, empty in _FIELDS[cls]:
        stored = next((value[key] for key in keys if value.get(key) is not None), None)
        if name == required and not isinstance(stored, str):
            raise MalformedPayload(f"{name!r} is missing")
        field_value = read(stored)
        values[name] = empty if field_value == "" else field_value
    payload: Any = cls(**values)
    if isinstance(payload, Info) and "said" in value:
        payload = replace(payload, text=restore_message(payload.text, value["said"]))
    if isinstance(payload, Info) and value.get("markup") is True:
        return replace(payload, text=_STYLE.sub("", payload.text).replace("\\[", "["))
    return payload  # type: ignore[no-any-return]


def event_type_of(payload: Payload) -> str:
    return _TYPES[type(payload)]
