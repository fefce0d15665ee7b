"""The client that the protocol's authors test: ``python -m tests.mcp_conformance.client
URL`` connects to one of their servers and calls all its tools, as the product does."""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from conversations.agent.mcp.config import parse_config
from conversations.agent.mcp.connection import READY, Timing, ToolServerConnection
from conversations.domain.tool_questions import make_question, read_content

SAMPLES = {"number": 5, "integer": 5, "string": "beans", "boolean": True}


async def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Accept with what is there by default."""
    question = make_question(asked, call="", server="conformance")
    return {"action": "accept", "content": read_content(question, {})}


async def main(url: str) -> None:
    config = parse_config({"servers": {"conformance": {"url": url}}}, environment={})
    connection = ToolServerConnection(config.servers["conformance"], root=None, timing=Timing())
    connection.use()
    await connection.wait_connected(seconds=30)
    if connection.state != READY:
        sys.exit(connection.reason)
    for offer in connection.offers:
        properties = offer.input_schema.get("properties", {})
        arguments = {name: SAMPLES.get(one.get("type")) for name, one in properties.items()}
        print(await connection.call(offer.own_name, arguments, report=print, ask=answer))
    await connection.close()


if __name__ == "__main__":
    import django

    django.setup()
    asyncio.run(main(sys.argv[-1]))
