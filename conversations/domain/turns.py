"""Turns as plain values, and the rows that are synthesised from turns without events."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from operator import attrgetter
from typing import Any

from .attachments import is_reference, shown_attachment
from .events import (
    AssistantText,
    ContentIndicator,
    Info,
    Payload,
    ToolCallCompleted,
    ToolCallStarted,
    UserMessage,
)
from .text import load_json, load_object, text_of

USER, ASSISTANT, TOOL, SYSTEM = "user", "assistant", "tool", "system"
ROLES = (USER, ASSISTANT, TOOL, SYSTEM)

# A key in the metadata of a system turn. The model is given the turn's text as a note beside the
# person's messages. Other system turns are not part of the window.
MODEL_NOTE = "model_note"
# A key in the metadata of a system turn. Its value says that later requests leave out turns, or
# include them again (``from``, ``to``, ``is_aside``).
ASIDE = "set_aside"
# A key in the metadata of a system turn for the model: the paths of files that a person put back.
FILES_BACK = "files_back"
INDICATED_KINDS = {"image": "image", "document": "document", "file": "file"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyTurn:
    """The content columns of a turn, in the order of its digest.

    ``blocks`` are the provider's content blocks. JSON columns are text. This class is the only list
    of these columns: the statements that write and read turns, their digest, the export and the
    import are derived from it. A test compares it with the model.
    """

    role: str
    content: str
    blocks: str | None = None
    tool_calls: str | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    token_count: int = 0
    stop_reason: str = ""
    complete: bool = True
    metadata: str = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTurn(AnyTurn):
    """A turn to append."""

    created_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn(AnyTurn):
    """A turn as read from the archive."""

    number: int
    created_at: datetime
    digest: str = ""


CONTENT_COLUMNS = tuple(field.name for field in fields(AnyTurn))
content_values = attrgetter(*CONTENT_COLUMNS)


class MalformedTurn(ValueError):
    """A column of a stored turn does not have the expected form."""


def read_blocks(turn: AnyTurn) -> list[dict[str, Any]] | None:
    """Return the provider's content blocks, or None if there are none. Raises MalformedTurn."""
    return _read_list(turn.blocks, "blocks")


def read_tool_calls(turn: AnyTurn) -> list[dict[str, Any]]:
    """Return the tool calls as ``{"id", "name", "input"}``. Raises MalformedTurn.

    The stored calls may have the shape of the Messages API, of OpenAI, or the older ``args``.
    """
    blocks = read_blocks(turn)
    if blocks is not None:
        return [block for block in blocks if block.get("type") == "tool_use"]
    return [_normal_call(call) for call in read_stored_calls(turn)]


def calls_of(turn: AnyTurn) -> list[dict[str, Any]]:
    """Return the tool calls as :func:`read_tool_calls` does, or none if the turn is damaged."""
    try:
        return read_tool_calls(turn)
    except MalformedTurn:
        return []


def read_stored_calls(turn: AnyTurn) -> list[dict[str, Any]]:
    """Return the tool calls in the shape in which they are stored. Raises MalformedTurn."""
    return _read_list(turn.tool_calls, "tool_calls") or []


def text_of_blocks(blocks: Iterable[dict[str, Any]]) -> str:
    """Return the text of a message's blocks. Each text block becomes a paragraph."""
    texts = (block.get("text") for block in blocks if block.get("type") == "text")
    return "\n\n".join(text for text in texts if isinstance(text, str))


def text_of_answer(blocks: Iterable[dict[str, Any]]) -> str:
    """Return the text of an answer's blocks.

    The provider divides a text with citations into several blocks, so consecutive text blocks are
    joined. Texts before and after thinking or a call are separate paragraphs.
    """
    parts = [""]
    for block in blocks:
        if block.get("type") == "text":
            parts[-1] += str(block.get("text", ""))
        elif block.get("type") in ("thinking", "tool_use"):
            parts.append("")
    return "\n\n".join(part for part in parts if part.strip())


def attached_names(turn: AnyTurn) -> list[str]:
    """Return the names of attachments of a person or a tool, or none if the turn is damaged."""
    if turn.role not in (USER, TOOL) or turn.blocks is None:
        return []
    try:
        blocks = read_blocks(turn) or []
    except MalformedTurn:
        return []
    return [str(block.get("title") or "file") for block in blocks if is_reference(block)]


def synthesise_rows(turn: StoredTurn) -> list[Payload]:
    """Return the rows of a turn that has no events.

    The same turn always gives the same rows. Raises MalformedTurn, for which callers show a
    fallback row.
    """
    if turn.role not in (USER, ASSISTANT, TOOL):
        is_shown = read_metadata(turn).get("user_facing") is True
        return [Info(text=turn.content)] if is_shown else []
    if turn.role == ASSISTANT:
        calls = read_tool_calls(turn)
        thoughts = [block for block in read_blocks(turn) or [] if block.get("type") == "thinking"]
        thinking = "\n\n".join(str(block.get("thinking", "")) for block in thoughts).strip()
        rows: list[Payload] = [
            ToolCallStarted(
                call_id=str(call.get("id", "")),
                name=str(call.get("name") or "tool"),
                arguments=call.get("input"),
            )
            for call in calls
        ]
        text_row = AssistantText(text=turn.content, thinking=thinking, partial=not turn.complete)
        return [text_row, *rows] if turn.content or thinking or not calls else rows
    blocks = read_blocks(turn) or []
    indicated = [block for block in blocks if block.get("type") in INDICATED_KINDS]
    if turn.role == USER:
        # Attachments are shown with the message. Other content has rows of its own.
        shown = [shown_attachment(block) for block in blocks if is_reference(block)]
        others = [make_indicator(block) for block in indicated if not is_reference(block)]
        return [*others, UserMessage(text=turn.content, attachments=shown)]
    ok, output, error = read_tool_outcome(turn)
    call_id, name = turn.tool_call_id or "", turn.tool_name or "tool"
    return [
        ToolCallCompleted(call_id=call_id, name=name, ok=ok, output=output, error=error),
        *(make_indicator(block, call_id=call_id) for block in indicated),
    ]


def _read_list(text: str | None, name: str) -> list[dict[str, Any]] | None:
    try:
        value = load_json(text)
    except ValueError as error:
        raise MalformedTurn(f"{name} are not JSON: {error}") from error
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise MalformedTurn(f"{name} are not a list of objects")
    return value


def _normal_call(call: dict[str, Any]) -> dict[str, Any]:
    nested = call.get("function")
    function: dict[str, Any] = nested if isinstance(nested, dict) else call
    arguments: Any = next(
        (function[key] for key in ("input", "arguments", "args") if function.get(key) is not None),
        {},
    )
    if isinstance(arguments, str):
        try:
            arguments = load_json(arguments, default={})
        except ValueError:
            arguments = {"text": arguments}
    return {
        "type": "tool_use",
        "id": str(call.get("id") or call.get("tool_call_id") or call.get("call_id") or ""),
        "name": str(function.get("name") or function.get("tool_name") or "tool"),
        "input": arguments if isinstance(arguments, dict) else {"value": arguments},
    }


def make_indicator(block: dict[str, Any], *, call_id: str = "") -> ContentIndicator:
    """Return the row of a block that is not text, of a tool's result or an imported message."""
    if is_reference(block):
        shown = shown_attachment(block)
        return ContentIndicator(
            label=shown["name"] or "file",
            kind=str(block["type"]),
            media_type=shown["media_type"],
            size=shown.get("size"),
            call_id=call_id,
            attachment=shown["uuid"],
        )
    source = block.get("source")
    media_type = str(source.get("media_type", "")) if isinstance(source, dict) else ""
    kind = INDICATED_KINDS.get(str(block.get("type")), "file")
    label = str(block.get("title") or block.get("filename") or media_type or kind)
    return ContentIndicator(label=label, kind=kind, media_type=media_type, call_id=call_id)


def read_tool_outcome(turn: StoredTurn) -> tuple[bool | None, str, str]:
    """Return the outcome, output and error of a tool's result.

    They are read from a result object if the content is one (``{"success", "output", "error"}``).
    Otherwise the content itself is the output or the error.
    """
    ok = read_metadata(turn).get("ok")
    recorded = ok if isinstance(ok, bool) else None
    if turn.content.startswith("{"):
        try:
            value = load_json(turn.content)
        except ValueError:
            value = None
        if isinstance(value, dict) and isinstance(value.get("success"), bool):
            return value["success"], text_of(value.get("output")), text_of(value.get("error"))
    if recorded is False:
        return False, "", turn.content
    return recorded, turn.content, ""


def read_metadata(turn: AnyTurn) -> dict[str, Any]:
    """Return the turn's metadata, or an empty dict if they are damaged."""
    return load_object(turn.metadata)
