"""A server's tool as a tool of ours."""

import asyncio
import base64
import binascii
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from conversations.agent.tools.read_file import ExaminedFile, save_file
from conversations.agent.tools.tool import Tool, ToolContext, ToolResult
from conversations.agent.undo.trees import Author, Watch, watched
from conversations.archive.attachments import examine
from conversations.domain.errors import Rejected
from conversations.domain.text import dump_json, one_line, storable
from conversations.domain.tool_calls import CHANGES
from conversations.domain.tool_policy import CallPlan

from .config import CallRefused, McpError
from .connection import ToolServerConnection
from .offers import Offer

# What a call of a server's tool gave, as a result for the model and the row.


MAX_FILES = 10  # Images and PDFs of one result that are kept

_SHOWN = ("image/", "application/pdf")


@dataclass(slots=True)
class _Reading:
    texts: list[str] = field(default_factory=list)
    files: list[tuple[bytes, str]] = field(default_factory=list)


async def make_result(context: ToolContext, server: str, data: Mapping[str, Any]) -> ToolResult:
    """From a result as the server gave it: text as it is, images and PDFs kept and shown,
    everything else described."""
    output, files = await asyncio.to_thread(_take_apart, server, data)
    blocks = [await save_file(context, file) for file in files]
    output = output or ("Shown below." if blocks else "(The tool gave no output.)")
    return ToolResult(ok=data.get("isError") is not True, output=output, blocks=blocks)


def _take_apart(server: str, data: Mapping[str, Any]) -> tuple[str, list[ExaminedFile]]:
    reading = _Reading()
    content = data.get("content")
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict):
            _read_part(reading, server, part)
    structured = data.get("structuredContent")
    if structured is not None and not any(reading.texts):
        reading.texts.append(json.dumps(structured, ensure_ascii=False, indent=2))
    files, problems = [], []
    for raw, name in reading.files:
        try:
            content = examine(raw, name)
        except Rejected as error:
            problems.append(f"[An image that cannot be shown: {error.message}]")
            continue
        ending = content.media_type.rpartition("/")[2]
        named = name if name.lower().endswith(f".{ending}") else f"{name}.{ending}"
        files.append(ExaminedFile(data=raw, name=named, content=content))
    texts = [text for text in (*reading.texts, *problems) if text]
    return _capped(storable("\n\n".join(texts))), files


def _read_part(reading: _Reading, server: str, part: Mapping[str, Any]) -> None:
    kind = part.get("type")
    if kind == "text":
        reading.texts.append(str(part.get("text", "")))
    elif kind == "image":
        _take(reading, part.get("data"), f"{server}-{len(reading.files) + 1}")
    elif kind == "audio":
        reading.texts.append(f"[Audio, {_line(part.get('mimeType'))}: it cannot be heard here.]")
    elif kind == "resource_link":
        words = [_line(part.get(name)) for name in ("title", "name", "description", "mimeType")]
        about = ", ".join(word for word in words if word)
        reading.texts.append(f"[Resource {_line(part.get('uri'))}: {about}]")
    elif kind == "resource":
        resource = part.get("resource")
        _read_resource(reading, resource if isinstance(resource, dict) else {})
    else:
        reading.texts.append(f"[Something of the kind {_line(kind)}, which is not known here.]")


def _read_resource(reading: _Reading, resource: Mapping[str, Any]) -> None:
    uri, kind = _line(resource.get("uri")), _line(resource.get("mimeType"))
    if "text" in resource:
        reading.texts.append(f"[Resource {uri}]\n{resource['text']}")
    elif kind.startswith(_SHOWN):
        _take(reading, resource.get("blob"), uri.rpartition("/")[2] or "resource")
    else:
        size = len(str(resource.get("blob", ""))) * 3 // 4
        reading.texts.append(f"[Resource {uri}: {kind or 'data'}, about {size:,} bytes]")


def _take(reading: _Reading, data: Any, name: str) -> None:
    try:
        raw = base64.b64decode(str(data), validate=True)
    except (binascii.Error, ValueError):
        reading.texts.append("[An image that is damaged.]")
        return
    if len(raw) > settings.LOOM.max_attachment_bytes:
        reading.texts.append(f"[An image of {len(raw):,} bytes, too large to be shown.]")
    elif len(reading.files) >= MAX_FILES:
        reading.texts.append("[One more image.]")
    else:
        reading.files.append((raw, name))


def _capped(output: str) -> str:
    limit: int = settings.LOOM.max_output_bytes
    data = output.encode()
    if len(data) <= limit:
        return output
    kept = data[:limit].decode("utf-8", "ignore")
    return f"{kept}\n\n[{len(data) - limit:,} more bytes of output were not kept.]"


def _line(value: Any) -> str:
    return one_line(storable(str(value)), limit=300) if value is not None else ""


def make_tool(connection: ToolServerConnection, offer: Offer) -> Tool:
    """What it does is the server's doing: the plan shows the arguments, and where they go. A
    description that is not the approved one any more is another tool."""
    server = connection.config.name
    basis = sha256(dump_json(asdict(offer)).encode()).hexdigest()

    async def plan(context: ToolContext, arguments: dict[str, Any]) -> CallPlan | ToolResult:
        host = urlsplit(connection.config.url).hostname
        return CallPlan(
            effect=offer.effect,
            summary=f"{one_line(offer.own_name, limit=100)} of {server}",
            command=json.dumps(arguments, ensure_ascii=False, indent=2),
            note=f"The arguments go to {host}." if host else "",
            kind_key=f"mcp:{server}:{offer.own_name}",
            kind_label=f"calls of {one_line(offer.own_name, limit=100)} of {server}",
            basis=basis,
        )

    async def run(context: ToolContext, arguments: dict[str, Any]) -> ToolResult:
        if context.basis and context.basis != basis:
            words = "This is not the tool that was approved: the server describes another one now."
            return ToolResult(ok=False, output=words)
        # A program in the workspace's folder may change files there: what it changed is known then,
        # and can be put back.
        watch = Watch()
        try:
            async with AsyncExitStack() as stack:
                if connection.config.is_program and offer.effect == CHANGES:
                    author = Author(
                        session_pk=context.session_pk,
                        run_pk=context.run_pk,
                        call_pk=context.call_pk,
                    )
                    watching = watched(context.root, author=author, write=context.write)
                    watch = await stack.enter_async_context(watching)
                data = await connection.call(offer.own_name, arguments, report=context.report)
        except CallRefused as error:
            return _failed(str(error), watch)
        except McpError as error:
            return _failed(
                f"The tool server {connection.config.name} is not answering. {error}", watch
            )
        except Rejected as error:
            return _failed(error.message, watch)
        result = await make_result(context, connection.config.name, data)
        return replace(result, output=_with_note(result.output, watch))

    return Tool(
        name=offer.name,
        description=offer.description,
        arguments=offer.input_schema,
        run=run,
        effect=offer.effect,
        plan=plan if offer.effect == CHANGES else None,
    )


def _failed(words: str, watch: Watch) -> ToolResult:
    return ToolResult(ok=False, output=_with_note(words, watch))


def _with_note(output: str, watch: Watch) -> str:
    return f"{output}\n\n{watch.note}" if watch.note else output
