"""A conversation with aisuite. The argument is ``anthropic`` or ``openai``."""

import sys
from typing import Any

import aisuite
from words import (
    ANTHROPIC,
    LAST,
    MODEL,
    NEEDS_TOOL,
    OPENAI,
    PLAIN,
    STREAMED,
    TOKEN,
    report,
    weather,
)

kind = sys.argv[1]
url = ANTHROPIC if kind == "anthropic" else OPENAI
client = aisuite.Client({kind: {"api_key": TOKEN, "base_url": url}})
said: list[Any] = []


def say(text: str, **more: Any) -> str:
    said.append({"role": "user", "content": text})
    done = client.chat.completions.create(
        model=f"{kind}:{MODEL}", messages=said, max_tokens=500, **more
    )
    message = done.choices[0].message
    said.extend(getattr(done.choices[0], "intermediate_messages", None) or [message])
    return message.content


plain = say(PLAIN)
streamed = say(STREAMED)
warm = say(NEEDS_TOOL, tools=[weather], max_turns=3)
report(plain, warm, say(LAST), pieces=[streamed])
