"""Rules for tool calls and their results, which are in different messages."""

from typing import Any

from tests.wire.rules.errors import refuse
from tests.wire.rules.prompt import blocks_of


def check_pairing(messages: list[dict[str, Any]]) -> None:
    """Check that each call has one result in the next message, before any text."""
    seen: set[str] = set()
    open_calls: list[str] = []
    for number, message in enumerate(messages):
        blocks = blocks_of(message)
        check_results(blocks, open_calls, number)
        open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        for call in open_calls:
            if call in seen:
                raise refuse("messages: `tool_use` ids must be unique")
            seen.add(call)


def check_results(blocks: list[dict[str, Any]], open_calls: list[str], number: int) -> None:
    answered: list[str] = []
    has_other = False
    for position, block in enumerate(blocks):
        if block["type"] != "tool_result":
            has_other = True
            continue
        check_result(block["tool_use_id"], answered, open_calls, f"messages.{number}", position)
        if has_other:
            raise refuse(
                f"messages.{number}: `tool_result` blocks must come first in the content of a"
                " message; text goes after them"
            )
        answered.append(block["tool_use_id"])
    missing = [call for call in open_calls if call not in answered]
    if missing:
        raise refuse(
            f"messages.{number}: `tool_use` ids were found without `tool_result` blocks"
            f" immediately after: {', '.join(missing)}. Each `tool_use` block must have a"
            " corresponding `tool_result` block in the next message."
        )


def check_result(
    call: str, answered: list[str], open_calls: list[str], where: str, position: int
) -> None:
    if call in answered:
        raise refuse(
            f"{where}.content.{position}: each tool_use must have a single result. Found"
            f" multiple `tool_result` blocks with id: {call}"
        )
    if call not in open_calls:
        raise refuse(
            f"{where}.content.{position}: unexpected `tool_use_id` found in `tool_result`"
            f" blocks: {call}. Each `tool_result` block must have a corresponding `tool_use`"
            " block in the previous message."
        )
