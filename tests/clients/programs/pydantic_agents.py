"""A conversation with an agent of Pydantic AI.

The argument is ``anthropic``, or OpenAI's ``chat`` or ``responses``.
"""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
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

if sys.argv[1] == "anthropic":
    provider = AnthropicProvider(base_url=ANTHROPIC, api_key=TOKEN)
    model = AnthropicModel(MODEL, provider=provider)
else:
    kind = OpenAIChatModel if sys.argv[1] == "chat" else OpenAIResponsesModel
    model = kind(MODEL, provider=OpenAIProvider(base_url=OPENAI, api_key=TOKEN))


async def talk() -> None:
    agent = Agent(model, tools=[weather])
    plain = await agent.run(PLAIN)
    async with agent.run_stream(STREAMED, message_history=plain.all_messages()) as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    warm = await agent.run(NEEDS_TOOL, message_history=stream.all_messages())
    last = await agent.run(LAST, message_history=warm.all_messages())
    report(plain.output, warm.output, last.output, pieces=pieces)


asyncio.run(talk())
