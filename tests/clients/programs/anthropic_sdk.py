"""A conversation with the SDK of the Messages API.

The argument is ``sync``, ``async`` or ``runner``, which stands for the SDK's runner of tools.
"""

import asyncio
import sys
from typing import Any

from anthropic import Anthropic, AsyncAnthropic, beta_tool
from words import (
    ANTHROPIC,
    DESCRIPTION,
    LAST,
    MODEL,
    NEEDS_TOOL,
    PARAMETERS,
    PLAIN,
    STREAMED,
    TOKEN,
    report,
    weather,
)

TOOL = {"name": "weather", "description": DESCRIPTION, "input_schema": PARAMETERS}
GIVEN: Any = {"base_url": ANTHROPIC, "api_key": TOKEN}
ASKED: Any = {"model": MODEL, "max_tokens": 500, "tools": [TOOL]}


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def results_of(message: Any) -> list[dict[str, Any]]:
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": weather(**block.input)}
        for block in message.content
        if block.type == "tool_use"
    ]


def talk(*, by_runner: bool) -> None:
    said: list[Any] = []
    with Anthropic(**GIVEN) as client:

        def say(content: Any) -> Any:
            said.append({"role": "user", "content": content})
            message = client.messages.create(messages=said, **ASKED)
            said.append({"role": "assistant", "content": message.content})
            return message

        plain = say(PLAIN)
        said.append({"role": "user", "content": STREAMED})
        with client.messages.stream(messages=said, **ASKED) as stream:
            pieces = list(stream.text_stream)
            message = stream.get_final_message()
        said.append({"role": "assistant", "content": message.content})
        if by_runner:
            said.append({"role": "user", "content": NEEDS_TOOL})
            runner = client.beta.messages.tool_runner(
                messages=said, model=MODEL, max_tokens=500, tools=[beta_tool(weather)]
            )
            for message in runner:
                said.append({"role": "assistant", "content": message.content})
                if results := results_of(message):
                    said.append({"role": "user", "content": results})
            warm = message
        else:
            warm = say(results_of(say(NEEDS_TOOL)))
        report(text_of(plain), text_of(warm), text_of(say(LAST)), pieces=pieces)


async def talk_async() -> None:
    said: list[Any] = []
    async with AsyncAnthropic(**GIVEN) as client:

        async def say(content: Any) -> Any:
            said.append({"role": "user", "content": content})
            message = await client.messages.create(messages=said, **ASKED)
            said.append({"role": "assistant", "content": message.content})
            return message

        plain = await say(PLAIN)
        said.append({"role": "user", "content": STREAMED})
        async with client.messages.stream(messages=said, **ASKED) as stream:
            pieces = [piece async for piece in stream.text_stream]
            message = await stream.get_final_message()
        said.append({"role": "assistant", "content": message.content})
        warm = await say(results_of(await say(NEEDS_TOOL)))
        report(text_of(plain), text_of(warm), text_of(await say(LAST)), pieces=pieces)


if sys.argv[1] == "async":
    asyncio.run(talk_async())
else:
    talk(by_runner=sys.argv[1] == "runner")
