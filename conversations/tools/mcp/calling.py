"""A server's tool as a tool of ours."""

import json
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from conversations.changes.trees import Author, Watch, watched
from conversations.domain.approvals import CallPlan
from conversations.domain.errors import Rejected
from conversations.domain.jsontext import dump_json
from conversations.domain.text import one_line
from conversations.domain.tool_calls import CHANGES
from conversations.tools.tool import Tool, ToolContext, ToolResult

from .connection import ToolServerConnection
from .errors import CallRefused, McpError
from .offers import Offer
from .results import make_result


def make_tool(connection: ToolServerConnection, offer: Offer) -> Tool:
    """What it does is the server's doing: the plan shows the arguments, and where they
    go. A description that is not the approved one any more is another tool."""
    server = connection.config.name
    basis = sha256(dump_json(asdict(offer)).encode()).hexdigest()

    async def plan(context: ToolContext, arguments: dict[str, Any]) -> CallPlan | ToolResult:
        return CallPlan(
            effect=offer.effect,
            summary=f"{one_line(offer.own_name, limit=100)} of {server}",
            command=json.dumps(arguments, ensure_ascii=False, indent=2),
            note=_note(connection),
            kind_key=f"mcp:{server}:{offer.own_name}",
            kind_label=f"calls of {one_line(offer.own_name, limit=100)} of {server}",
            basis=basis,
        )

    async def run(context: ToolContext, arguments: dict[str, Any]) -> ToolResult:
        if context.basis and context.basis != basis:
            words = "This is not the tool that was approved: the server describes another one now."
            return ToolResult(ok=False, output=words)
        return await _call(connection, offer, context, arguments)

    return Tool(
        name=offer.name,
        description=offer.description,
        arguments=offer.input_schema,
        run=run,
        effect=offer.effect,
        plan=plan if offer.effect == CHANGES else None,
    )


async def _call(
    connection: ToolServerConnection, offer: Offer, context: ToolContext, arguments: dict[str, Any]
) -> ToolResult:
    """A program in the workspace's folder may change files there: what it changed is
    known then, and can be put back."""
    watch = Watch()
    try:
        async with AsyncExitStack() as stack:
            if connection.config.is_program and offer.effect == CHANGES:
                author = Author(
                    session_pk=context.session_pk, run_pk=context.run_pk, call_pk=context.call_pk
                )
                watching = watched(context.root, author=author, write=context.write)
                watch = await stack.enter_async_context(watching)
            data = await connection.call(offer.own_name, arguments, report=context.report)
    except CallRefused as error:
        return _failed(str(error), watch)
    except McpError as error:
        return _failed(f"The tool server {connection.config.name} is not answering. {error}", watch)
    except Rejected as error:
        return _failed(error.message, watch)
    result = await make_result(context, connection.config.name, data)
    return replace(result, output=_with_note(result.output, watch))


def _failed(words: str, watch: Watch) -> ToolResult:
    return ToolResult(ok=False, output=_with_note(words, watch))


def _with_note(output: str, watch: Watch) -> str:
    return f"{output}\n\n{watch.note}" if watch.note else output


def _note(connection: ToolServerConnection) -> str:
    host = urlsplit(connection.config.url).hostname
    return f"The arguments go to {host}." if host else ""
