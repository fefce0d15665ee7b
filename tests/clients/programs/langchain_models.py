"""A conversation with LangChain's models.

The argument is ``anthropic``, or OpenAI's ``chat`` or ``responses``.
"""

import sys
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from words import ANTHROPIC, LAST, MODEL, NEEDS_TOOL, OPENAI, PLAIN, STREAMED, TOKEN, report
from words import weather as find_weather

weather = tool("weather")(find_weather)
if sys.argv[1] == "anthropic":
    plain_model: Any = ChatAnthropic(model=MODEL, base_url=ANTHROPIC, api_key=TOKEN, max_tokens=500)
else:
    is_response = sys.argv[1] == "responses"
    plain_model = ChatOpenAI(
        model=MODEL, base_url=OPENAI, api_key=TOKEN, use_responses_api=is_response
    )
model = plain_model.bind_tools([weather])
said: list[Any] = []


def say(*messages: Any) -> Any:
    said.extend(messages)
    said.append(model.invoke(said))
    return said[-1]


plain = say(HumanMessage(PLAIN))
said.append(HumanMessage(STREAMED))
chunks = list(model.stream(said))
pieces = [chunk.text for chunk in chunks if chunk.text]
whole = chunks[0]
for chunk in chunks[1:]:
    whole += chunk
said.append(whole)
calls = say(HumanMessage(NEEDS_TOOL)).tool_calls
warm = say(*(ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]) for call in calls))
report(plain.text, warm.text, say(HumanMessage(LAST)).text, pieces=pieces)
