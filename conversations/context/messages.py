"""Turns as messages of the Messages API, with what it would refuse repaired.

Repairs are made here, in the window, and never in the archive: a tool call whose
result is missing gets an error result, a result without its call is left out,
blank texts are dropped, refused answers too (the provider asks for that), and the
conversation begins and ends with the person.
"""

import re
from collections.abc import Iterable
from typing import Any

from conversations.domain.turns import (
    ASSISTANT,
    TOOL,
    USER,
    MalformedTurn,
    StoredTurn,
    read_blocks,
    read_metadata,
    read_tool_calls,
)

type Message = dict[str, Any]

NO_RESULT = "This call was interrupted; it has no result."
CONTINUE_TEXT = "Go on exactly where your last answer was cut off."

_ID = re.compile(r"[^a-zA-Z0-9_-]")


def build_messages(turns: Iterable[StoredTurn], *, model: str, go_on: bool) -> list[Message]:
    """Messages for these turns, oldest first. ``go_on`` asks the model to continue
    its own last answer. The result is empty when no turn says anything."""
    messages: list[Message] = []
    waiting: dict[str, str] = {}
    for turn in turns:
        if turn.role == TOOL:
            _add_result(messages, waiting, turn)
            continue
        _answer_dangling(messages, waiting)
        if turn.role == USER:
            _add(messages, "user", _user_blocks(turn))
        elif turn.role == ASSISTANT and turn.stop_reason != "refusal":
            blocks = _assistant_blocks(turn, model=model)
            _add(messages, "assistant", blocks)
            waiting = {b["id"]: b["name"] for b in blocks if b.get("type") == "tool_use"}
    _answer_dangling(messages, waiting)
    while messages and (messages[0]["role"] != "user" or _is_results(messages[0])):
        messages.pop(0)
    if messages and (go_on or messages[-1]["role"] == "assistant"):
        _add(messages, "user", [{"type": "text", "text": CONTINUE_TEXT}])
    return messages


def _is_results(message: Message) -> bool:
    return any(block.get("type") == "tool_result" for block in message["content"])


def _add(messages: list[Message], role: str, blocks: list[dict[str, Any]]) -> None:
    if not blocks:
        return
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"].extend(blocks)
    else:
        messages.append({"role": role, "content": blocks})


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _user_blocks(turn: StoredTurn) -> list[dict[str, Any]]:
    try:
        blocks = read_blocks(turn)
    except MalformedTurn:
        blocks = None
    if blocks is None:
        return _text(turn.content)
    return [block for block in blocks if not _is_blank(block)] or _text(turn.content)


def _is_blank(block: dict[str, Any]) -> bool:
    return block.get("type") == "text" and not str(block.get("text", "")).strip()


def _assistant_blocks(turn: StoredTurn, *, model: str) -> list[dict[str, Any]]:
    try:
        blocks = read_blocks(turn)
        calls = read_tool_calls(turn)
    except MalformedTurn:
        return _text(turn.content)
    if blocks is None:
        return _text(turn.content) + [_sendable_call(call) for call in calls]
    # Thinking is signed for the model that thought it; another one refuses it.
    same_model = read_metadata(turn).get("model", model) == model
    kept = [
        _sendable_call(block) if block.get("type") == "tool_use" else block
        for block in blocks
        if not _is_blank(block)
        and (same_model or block.get("type") not in ("thinking", "redacted_thinking"))
    ]
    only_thinking = all(b.get("type") in ("thinking", "redacted_thinking") for b in kept)
    return [] if only_thinking else kept


def _sendable_call(block: dict[str, Any]) -> dict[str, Any]:
    arguments = block.get("input")
    return block | {
        "id": _sendable_id(str(block.get("id", ""))),
        "name": _ID.sub("_", str(block.get("name") or "tool"))[:128],
        "input": arguments if isinstance(arguments, dict) else {},
    }


def _sendable_id(call_id: str) -> str:
    return _ID.sub("_", call_id)[:128] or "unnamed"


def _add_result(messages: list[Message], waiting: dict[str, str], turn: StoredTurn) -> None:
    call_id = _sendable_id(turn.tool_call_id or "")
    if call_id not in waiting:
        return
    del waiting[call_id]
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id}
    if turn.content.strip():
        result["content"] = turn.content
    if read_metadata(turn).get("ok") is False:
        result["is_error"] = True
        result.setdefault("content", "The tool failed without a message.")
    _add(messages, "user", [result])


def _answer_dangling(messages: list[Message], waiting: dict[str, str]) -> None:
    for call_id in waiting:
        _add(
            messages,
            "user",
            [
                {
                    "type": "tool_result",
                    "tool_use_id": call_id,
                    "is_error": True,
                    "content": NO_RESULT,
                }
            ],
        )
    waiting.clear()
