"""The rows that a person sees: event types and their payloads.

A payload is stored as JSON with its version (``"v": 1``). Reading is tolerant:
journals of earlier versions use other key names, and a payload that cannot be
understood becomes a :class:`Fallback`, never an error. ``parse_payload`` is the
only reader, ``dump_payload`` the only writer.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .text import dump_json, load_json

PAYLOAD_VERSION = 1

USER_MESSAGE = "user_message"
ASSISTANT_TEXT = "assistant_text"
TOOL_CALL_STARTED = "tool_call_started"
TOOL_CALL_COMPLETED = "tool_call_completed"
CONTENT_INDICATOR = "content_indicator"
TURN_SEPARATOR = "turn_separator"
INFO = "info"

APPROVAL = "approval"
"""The kind of a notice about a call that waits for a person. Its codes:"""

APPROVAL_ASKED, APPROVAL_DECIDED = "approval_asked", "approval_decided"
"""The data of the first is a ``domain.tool_policy.Asked``; of the second ``{"call",
"call_id", "decision", "by", "reason"}``."""

REVERTED = "reverted"
"""The code of the notice that files were put back. Its data: ``{"revert", "files", "left"}``:
the revert's uuid, how many are back and how many are not."""

BROUGHT_ALONG = "brought_along"
"""The code of the notice that the turns before it came from another program, and the key
of the format that they came in, in their metadata. Its data: ``{"turns"}``, how many."""

COMPACTED = "compacted"
"""The code of the notice of a summary; its data holds the summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    text: str
    client_id: str = ""
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
    """A notice. ``kind``: notice, error or interrupted. ``code`` is stable, for
    programs. ``action``: what the row offers (``retry``, ``continue`` or nothing).
    ``data``: what the row shows beside its text, by ``code``."""

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


class Malformed(ValueError):
    """A stored payload that cannot be understood; the text says why."""


def dump_payload(payload: Payload) -> str:
    """The JSON text to store: the version, then what differs from the defaults."""
    values = {k: v for k, v in asdict(payload).items() if v not in ("", None, [], False)}
    values |= {name: getattr(payload, name) for name in _REQUIRED[type(payload)]}
    if isinstance(payload, ToolCallCompleted) and payload.ok is False:
        values["ok"] = False
    return dump_json({"v": PAYLOAD_VERSION} | values)


def parse_payload(event_type: str, text: str) -> Payload:
    """Read a stored payload. Raises :class:`Malformed` with the reason."""
    read = _READERS.get(event_type)
    if read is None:
        raise Malformed(f"unknown event type {event_type!r}")
    try:
        value = load_json(text, default={})
    except ValueError as error:
        raise Malformed(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Malformed(f"not an object but {type(value).__name__}")
    return read(value)


def event_type_of(payload: Payload) -> str:
    return _TYPES[type(payload)]


def _first(value: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if value.get(name) is not None:
            return value[name]
    return None


def _text(value: Mapping[str, Any], *names: str) -> str:
    found = _first(value, *names)
    if found is None:
        return ""
    return found if isinstance(found, str) else dump_json(found)


def _number(value: Mapping[str, Any], *names: str) -> int | None:
    found = _first(value, *names)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        return int(found)
    except (OverflowError, ValueError):  # inf and NaN are JSON to Python
        return None


def _required_text(value: Mapping[str, Any], *names: str) -> str:
    found = _first(value, *names)
    if not isinstance(found, str):
        raise Malformed(f"{names[0]!r} is missing")
    return found


def _read_user_message(value: Mapping[str, Any]) -> UserMessage:
    attachments = value.get("attachments")
    return UserMessage(
        text=_required_text(value, "text", "content", "message"),
        client_id=_text(value, "client_id"),
        attachments=attachments if isinstance(attachments, list) else [],
    )


def _read_assistant_text(value: Mapping[str, Any]) -> AssistantText:
    thinking = _text(value, "thinking")
    return AssistantText(
        text=_text(value, "text", "content", "markup")
        if thinking
        else _required_text(value, "text", "content", "markup"),
        thinking=thinking,
        thinking_ms=_number(value, "thinking_ms"),
        partial=value.get("partial") is True,
        model=_text(value, "model"),
    )


def _read_tool_call_started(value: Mapping[str, Any]) -> ToolCallStarted:
    return ToolCallStarted(
        call_id=_text(value, "call_id", "tool_call_id", "id"),
        name=_required_text(value, "name", "tool_name"),
        arguments=_first(value, "arguments", "args", "input"),
        call=_text(value, "call"),
    )


def _read_tool_call_completed(value: Mapping[str, Any]) -> ToolCallCompleted:
    ok = _first(value, "ok", "success")
    return ToolCallCompleted(
        call_id=_text(value, "call_id", "tool_call_id", "id"),
        name=_text(value, "name", "tool_name") or "tool",
        ok=ok if isinstance(ok, bool) else None,
        output=_text(value, "output", "result"),
        error=_text(value, "error"),
        arguments=_first(value, "arguments", "args", "input"),
        duration_ms=_number(value, "duration_ms", "elapsed_ms"),
        call=_text(value, "call"),
        state=_text(value, "state"),
        output_chars=_number(value, "output_chars"),
        exit_code=_number(value, "exit_code"),
        diff=_text(value, "diff"),
        decision=_text(value, "decision"),
        decided_by=_text(value, "decided_by"),
        reason=_text(value, "reason"),
    )


def _read_content_indicator(value: Mapping[str, Any]) -> ContentIndicator:
    return ContentIndicator(
        label=_text(value, "label", "text", "name", "content_blocks") or "content",
        kind=_text(value, "kind", "type") or "file",
        media_type=_text(value, "media_type"),
        size=_number(value, "size"),
        call_id=_text(value, "call_id", "tool_call_id"),
        attachment=_text(value, "attachment"),
    )


def _read_turn_separator(value: Mapping[str, Any]) -> TurnSeparator:
    return TurnSeparator(
        run=_text(value, "run"),
        state=_text(value, "state") or "completed",
        stop_reason=_text(value, "stop_reason"),
        model=_text(value, "model"),
        input_tokens=_number(value, "input_tokens"),
        output_tokens=_number(value, "output_tokens", "tokens"),
        cached_tokens=_number(value, "cached_tokens"),
        cost_usd=_text(value, "cost_usd"),
        duration_ms=_number(value, "duration_ms", "elapsed_ms"),
        first_token_ms=_number(value, "first_token_ms"),
        is_demo=value.get("is_demo") is True,
    )


_STYLE = re.compile(r"(?<!\\)\[(?:/|/?[a-zA-Z#@][^\[\]]*)\]")


def _without_styles(text: str) -> str:
    """A text of a terminal that marks its styles: ``[dim]…[/dim]``, ``\\[`` for a bracket."""
    return _STYLE.sub("", text).replace("\\[", "[")


def _read_info(value: Mapping[str, Any]) -> Info:
    data = value.get("data")
    text = _required_text(value, "text", "message", "content", "markup")
    return Info(
        text=_without_styles(text) if value.get("markup") is True else text,
        kind=_text(value, "kind") or "notice",
        code=_text(value, "code"),
        detail=_text(value, "detail"),
        action=_text(value, "action"),
        run=_text(value, "run"),
        data=data if isinstance(data, dict) else None,
    )


_READERS: dict[str, Callable[[Mapping[str, Any]], Payload]] = {
    USER_MESSAGE: _read_user_message,
    ASSISTANT_TEXT: _read_assistant_text,
    TOOL_CALL_STARTED: _read_tool_call_started,
    TOOL_CALL_COMPLETED: _read_tool_call_completed,
    CONTENT_INDICATOR: _read_content_indicator,
    TURN_SEPARATOR: _read_turn_separator,
    INFO: _read_info,
}

EVENT_TYPES = tuple(_READERS)

_TYPES: dict[type, str] = {
    UserMessage: USER_MESSAGE,
    AssistantText: ASSISTANT_TEXT,
    ToolCallStarted: TOOL_CALL_STARTED,
    ToolCallCompleted: TOOL_CALL_COMPLETED,
    ContentIndicator: CONTENT_INDICATOR,
    TurnSeparator: TURN_SEPARATOR,
    Info: INFO,
}

_REQUIRED: dict[type, tuple[str, ...]] = {
    UserMessage: ("text",),
    AssistantText: ("text",),
    ToolCallStarted: ("call_id", "name"),
    ToolCallCompleted: ("call_id", "name"),
    ContentIndicator: ("label",),
    TurnSeparator: (),
    Info: ("text",),
}
