"""The messages that each program sends, and the tool that it executes."""

import json
import os
from collections.abc import Sequence
from typing import Any

ADDRESS, TOKEN, MODEL = (os.environ[f"CLIENT_{name}"] for name in ("ADDRESS", "TOKEN", "MODEL"))
ANTHROPIC = f"{ADDRESS}/api/v1/anthropic/garden"
OPENAI = f"{ADDRESS}/api/v1/openai/garden/v1"

PLAIN, STREAMED, NEEDS_TOOL, LAST = "What now?", "Go on.", "And the weather in Rome?", "Thank you."

DESCRIPTION = "The weather of a place."
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"place": {"type": "string"}},
    "required": ["place"],
}


def weather(place: str) -> str:
    """The weather of a place."""
    return f"25 degrees in {place}"


def report(*texts: str, pieces: Sequence[str]) -> None:
    """Print the answers. ``pieces`` are the parts of the streamed answer, the second one."""
    plain, *rest = texts
    print(json.dumps({"texts": [plain, "".join(pieces), *rest], "pieces": len(pieces)}))
