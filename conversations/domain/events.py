"""The rows that a person sees: event types and their payloads.

A payload is stored as JSON with its version (``"v": 1``). Reading is tolerant:
journals of earlier versions use other key names, and a payload that cannot be
understood becomes a :class:`Fallback`, never an error. ``parse_payload`` is the
only reader, ``dump_payload`` the only writer.
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

APPROVAL = "approval"  # The kind of a notice about a call that waits for a person. Its codes:

# The data of the first is an ``ApprovalRequest``; of the second ``{"call", "call_id",
# "decision", "by", "reason"}``.
APPROVAL_ASKED, APPROVAL_DECIDED = "approval_asked", "approval_decided"

# The code of the notice that files were put back. Its data: ``{"revert", "files", "left"}``:
# the revert's uuid, how many are back and how many are not.
REVERTED = "reverted"

# The code of the notice that the turns before it came from another program, and the key of
# the format that they came in, in their metadata. Its data: ``{"turns"}``, how many.
BROUGHT_ALONG = "brought_along"
# The codes of the notices that turns stand aside from later requests, and that they are included
# again. Their data: ``{"from", "to"}``, numbers of turns.
SET_ASIDE, INCLUDED = "set_aside", "included"
# The code of the notice that somebody withdrew the queued message of somebody else, whose words
# are its detail. Its data: ``{"run"}``, the uuid of the message's run.
WITHDRAWN = "message_withdrawn"
COMPACTED = "compacted"  # The code of the notice of a summary; its data holds the summary.


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """``by`` is the name of who wrote it in somebody else's session."""

    text: str
    client_id: str = ""
    by: str = ""
    attachments: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantText:
    """``thinking_ms`` is how long the model thought. ``partial``: it was cut off."""

    text: str
    thinking: str = ""
    thinking_ms: int | None = None
    partial: bool = False
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStarted:
    """``call`` is the uuid of the call's record, empty where there is none."""

    call_id: str
    name: str
    arguments: Any = None
    call: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallCompleted:
    """``ok`` None: the outcome was not recorded. ``output`` is the beginning of what
    came out where ``output_chars`` says that it is longer; the turn has all of it.
    ``state`` is given where it is not ``completed``. ``diff`` is a unified diff of what
    was changed, ``decided_by`` the person who allowed or denied the call."""

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
    """``kind``: image, document or file. ``size`` in bytes. ``attachment`` is the uuid of
    the attachment that it shows, empty where there is none."""

    label: str
    kind: str = "file"
    media_type: str = ""
    size: int | None = None
    call_id: str = ""
    attachment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSeparator:
    """The end of a run. Tokens as reported by the provider; ``input_tokens`` is
    the whole prompt, ``cached_tokens`` the part of it that was read from cache.
    ``state`` is the run's."""

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
    """A notice. ``text`` is a message (``domain.messages``), of which the English text is
    stored and, beside it as ``said``, what it is made of. ``kind``: notice, error or
    interrupted. ``code`` is stable, for programs. ``action``: what the row offers
    (``retry``, ``continue`` or nothing). ``data``: what the row shows beside its text, by
    ``code``."""

    text: str
    kind: str = "notice"
    code: str = ""
    detail: str = ""
    action: str = ""
    run: str = ""
    data: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """What is shown for a stored row that cannot be read. ``raw`` is its text."""

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
    """A stored payload that cannot be understood; the text says why."""


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

# Field → the keys under which journals of any version have it, where it is not its name.
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

# The text without which a payload means nothing.
_NEEDED = {UserMessage: "text", AssistantText: "text", ToolCallStarted: "name", Info: "text"}

# A mark of a terminal's text: ``[dim]…[/dim]``.
_STYLE = re.compile(r"(?<!\\)\[(?:/|/?[a-zA-Z#@][^\[\]]*)\]")


def _number(found: Any) -> int | None:
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        return int(found)
    except (OverflowError, ValueError):  # inf and NaN are JSON to Python
        return None


# A field's type → its value from JSON. What does not fit is as if it were missing.
_READERS: dict[Any, Callable[[Any], Any]] = {
    str: text_of,
    int | None: _number,
    bool: lambda found: found is True,
    bool | None: lambda found: found if isinstance(found, bool) else None,
    list[Any]: lambda found: found if isinstance(found, list) else [],
    dict[str, Any] | None: lambda found: found if isinstance(found, dict) else None,
    Any: lambda found: found,
}

# What stands for an empty text, where it is not the field's default.
_OTHERWISE = {(ToolCallCompleted, "name"): "tool", (ContentIndicator, "label"): "content"}


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _read_fields(cls: type[Payload]) -> Iterator[tuple[str, tuple[str, ...], Any, Any]]:
    for known in fields(cls):
        has_default = known.type is str and not _is_required(known)
        empty = _OTHERWISE.get((cls, known.name), known.default if has_default else "")
        yield known.name, _NAMES[cls].get(known.name, (known.name,)), _READERS[known.type], empty


# Every row that is shown or streamed is read by it: name, keys, reader, what stands for "".
_FIELDS = {cls: list(_read_fields(cls)) for cls in _TYPES}


def dump_payload(payload: Payload) -> str:
    """The JSON text to store."""
    return dump_json(payload_data(payload))


def payload_data(payload: Payload) -> dict[str, Any]:
    """The version, then what differs from the defaults."""
    given = {f.name: getattr(payload, f.name) for f in fields(payload)}
    values = {k: v for k, v in given.items() if v not in ("", None, [], False)}
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
    needed = _NEEDED.get(cls)
    if cls is AssistantText and value.get("thinking") not in (None, ""):
        needed = None
    found: dict[str, Any] = {}
    for name, keys, read, empty in _FIELDS[cls]:
        given = next((value[key] for key in keys if value.get(key) is not None), None)
        if name == needed and not isinstance(given, str):
            raise MalformedPayload(f"{name!r} is missing")
        found[name] = empty if (field := read(given)) == "" else field
    payload: Any = cls(**found)
    if isinstance(payload, Info) and "said" in value:
        payload = replace(payload, text=restore_message(payload.text, value["said"]))
    if isinstance(payload, Info) and value.get("markup") is True:
        return replace(payload, text=_STYLE.sub("", payload.text).replace("\\[", "["))
    return payload  # type: ignore[no-any-return]


def event_type_of(payload: Payload) -> str:
    return _TYPES[type(payload)]
