"""A conversation with the SDK of OpenAI's APIs. The argument is ``chat`` or ``responses``."""

import json
import sys
from typing import Any

from openai import OpenAI
from words import (
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


def chat(client: OpenAI) -> None:
    said: list[Any] = []
    asked: Any = {"model": MODEL, "tools": [{"type": "function", "function": FUNCTION}]}

    def say(*messages: Any) -> Any:
        said.extend(messages)
        message = client.chat.completions.create(messages=said, **asked).choices[0].message
        said.append(message)
        return message

    plain = say({"role": "user", "content": PLAIN})
    said.append({"role": "user", "content": STREAMED})
    stream = client.chat.completions.create(messages=said, stream=True, **asked)
    pieces = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
    said.append({"role": "assistant", "content": "".join(pieces)})
    calls = say({"role": "user", "content": NEEDS_TOOL}).tool_calls
    results = [
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": weather(**json.loads(call.function.arguments)),
        }
        for call in calls
    ]
    warm = say(*results)
    last = say({"role": "user", "content": LAST})
    report(plain.content, warm.content, last.content, pieces=pieces)


def respond(client: OpenAI) -> None:
    asked: Any = {"model": MODEL, "tools": [{"type": "function", "strict": False} | FUNCTION]}

    def say(said: Any, after: Any = None) -> Any:
        more = {"previous_response_id": after.id} if after else {}
        return client.responses.create(input=said, **asked, **more)

    plain = say(PLAIN)
    with client.responses.stream(input=STREAMED, previous_response_id=plain.id, **asked) as stream:
        pieces = [e.delta for e in stream if e.type == "response.output_text.delta"]
        streamed = stream.get_final_response()
    called = say(NEEDS_TOOL, streamed)
    results = [
        {
            "type": "function_call_output",
            "call_id": item.call_id,
            "output": weather(**json.loads(item.arguments)),
        }
        for item in called.output
        if item.type == "function_call"
    ]
    warm = say(results, called)
    report(plain.output_text, warm.output_text, say(LAST, warm).output_text, pieces=pieces)


with OpenAI(base_url=OPENAI, api_key=TOKEN) as client:
    {"chat": chat, "responses": respond}[sys.argv[1]](client)
