"""A conversation with LiteLLM. The argument is ``anthropic`` or ``openai``."""

import json
import sys
from typing import Any

import litellm
from words import (
    ANTHROPIC,
    DESCRIPTION,
    LAST,
    MODEL,
    NEEDS_TOOL,
    OPENAI,
    PARAMETERS,
    PLAIN,
    STREAMED,
    TOKEN,
    report,
    weather,
)

FUNCTION = {"name": "weather", "description": DESCRIPTION, "parameters": PARAMETERS}
asked: Any = {
    "model": f"{sys.argv[1]}/{MODEL}",
    "api_base": ANTHROPIC if sys.argv[1] == "anthropic" else OPENAI,
    "api_key": TOKEN,
    "tools": [{"type": "function", "function": FUNCTION}],
}
said: list[Any] = []


def say(*messages: Any) -> Any:
    said.extend(messages)
    message = litellm.completion(messages=said, **asked).choices[0].message
    said.append(message)
    return message


plain = say({"role": "user", "content": PLAIN})
said.append({"role": "user", "content": STREAMED})
stream = litellm.completion(messages=said, stream=True, **asked)
pieces = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
said.append({"role": "assistant", "content": "".join(pieces)})
calls = say({"role": "user", "content": NEEDS_TOOL}).tool_calls
warm = say(
    *(
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": weather(**json.loads(call.function.arguments)),
        }
        for call in calls
    )
)
last = say({"role": "user", "content": LAST})
report(plain.content, warm.content, last.content, pieces=pieces)
