"""The input of a tool call, from the text that a model wrote.

Input that is no JSON object, because ``max_tokens`` cut it or the model wrote it badly,
becomes ``{"_unparsed": "<the text as it came>"}``: the block stays one that the API takes
back, and no character of it is lost.
"""

import json
from typing import Any

UNPARSED_INPUT = "_unparsed"


def parse_tool_input(text: str) -> dict[str, Any]:
    """The JSON object in ``text``; an empty text is an empty object."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {UNPARSED_INPUT: text}


def read_unparsed_input(block: dict[str, Any]) -> str | None:
    """The raw text of a tool call's input that could not be parsed, else None."""
    tool_input = block.get("input")
    if isinstance(tool_input, dict) and set(tool_input) == {UNPARSED_INPUT}:
        return str(tool_input[UNPARSED_INPUT])
    return None
