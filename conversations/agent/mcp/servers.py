"""The servers of this process: connected when they are needed, never waited for long.

A server that is reached by an address is shared by the workspaces that may use it; a program runs
once for each workspace, in its folder.
"""

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from conversations.agent.tools.read_file import save_file
from conversations.agent.tools.tool import Tool, ToolContext, ToolResult
from conversations.agent.undo.disk import Author
from conversations.agent.undo.trees import Watch, watched
from conversations.archive.attachments import examine
from conversations.domain.errors import Rejected
from conversations.domain.text import dump_json, one_line, storable
from conversations.domain.tool_calls import CHANGES
from conversations.domain.tool_policy import CallPlan

from .config import CallRefused, McpConfig, McpError, ServerConfig
from .connection import CONNECTING, FAILED, OFF, PREFIX, READY, Offer, Timing, ToolServerConnection

# A server's tool as a tool of ours.


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
    blocks = [await save_file(context, **file) for file in files]
    output = output or ("Shown below." if blocks else "(The tool gave no output.)")
    return ToolResult(ok=data.get("isError") is not True, output=output, blocks=blocks)


def _take_apart(server: str, data: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
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
        files.append({"data": raw, "name": named, "content": content})
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
        embedded = resource if isinstance(resource, dict) else {}
        uri, media = _line(embedded.get("uri")), _line(embedded.get("mimeType"))
        if "text" in embedded:
            reading.texts.append(f"[Resource {uri}]\n{embedded['text']}")
        elif media.startswith(_SHOWN):
            _take(reading, embedded.get("blob"), uri.rpartition("/")[2] or "resource")
        else:
            size = len(str(embedded.get("blob", ""))) * 3 // 4
            reading.texts.append(f"[Resource {uri}: {media or 'data'}, about {size:,} bytes]")
    else:
        reading.texts.append(f"[Something of the kind {_line(kind)}, which is not known here.]")


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


logger = logging.getLogger(__name__)

NO_TOOLS: Mapping[str, Tool] = MappingProxyType({})

SWEEP_SECONDS = 60.0

UNUSED = "It is started when it is needed."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """A server as people see it in a workspace. ``left_out`` says what of its list is not on offer;
    ``is_off``: the configuration turns it off there."""

    name: str
    transport: str
    state: str
    reason: str = ""
    title: str = ""
    tools: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    since: datetime | None = None
    is_off: bool = False

    @property
    def is_failed(self) -> bool:
        return self.state == FAILED


class ToolServers:
    """Lives on the loop of the runtime; what only looks may be called from any thread."""

    def __init__(self, config: McpConfig, timing: Timing | None = None) -> None:
        self.config = config
        self.is_used = not config.is_empty
        self._timing = timing or Timing()
        self._connections: dict[tuple[str, str], ToolServerConnection] = {}
        self._tools: dict[tuple[str, str], tuple[int, tuple[Tool, ...]]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._is_stopped = False

    async def start(self) -> None:
        """Begin to connect to what needs no workspace."""
        if self.config.warning:
            logger.warning("mcp_config_open", extra={"fields": {"reason": self.config.warning}})
        for server in self.config.servers.values():
            if not server.is_program:
                self._connection(server, "", None).use()

    async def stop(self) -> None:
        """Nothing of them is left when this returns."""
        self._is_stopped = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in self._connections.values():
            self._close(connection)
        self._connections = {}
        if self._closing:
            await asyncio.wait(self._closing)

    async def prepare(self, workspace: str, root: Path) -> Mapping[str, Tool]:
        """See that the workspace's servers are there, and give the tools of those that are; one
        that has just begun to connect is waited for a moment."""
        if not self.is_used or self._is_stopped:
            return NO_TOOLS
        connections = self._connections_of(workspace, root)
        for connection in connections:
            connection.use()
        await asyncio.gather(*(connection.wait_connected() for connection in connections))
        return self.tools_of(workspace)

    async def wait_for(self, names: Iterable[str], workspace: str, root: Path) -> None:
        """Wait for the servers of these tools, as long as connecting may take: calls of them are to
        be executed."""
        wanted = [name for name in names if name.startswith(PREFIX)]
        if not wanted or not self.is_used or self._is_stopped:
            return
        for connection in self._connections_of(workspace, root):
            if any(name.startswith(f"{PREFIX}{connection.config.name}__") for name in wanted):
                connection.use()
                await connection.wait_connected(seconds=self._timing.connect)

    def tools_of(self, workspace: str) -> Mapping[str, Tool]:
        """The tools that are there now, by name."""
        if not self.is_used:
            return NO_TOOLS
        found: dict[str, Tool] = {}
        for server in self.config.servers_of(workspace):
            key = self._key(server, workspace)
            connection = self._connections.get(key)
            if connection is not None and connection.state == READY:
                found |= {tool.name: tool for tool in self._tools_by(key, connection)}
        return MappingProxyType(dict(sorted(found.items())))

    def explain(self, name: str, workspace: str) -> str:
        """Why there is no such tool, if that is a server's doing."""
        for state in self.describe(workspace):
            if name.startswith(f"{PREFIX}{state.name}__") and state.state != READY:
                return f"The tool server {state.name} is not answering. {state.reason}".strip()
        return ""

    def describe(self, workspace: str) -> list[ServerState]:
        """The workspace's servers, by name; those that are off there last."""
        if not self.is_used:
            return []
        states = [self._describe(server, workspace) for server in self.config.servers_of(workspace)]
        off = self.config.off_in(workspace)
        return states + [
            ServerState(
                name=server.name,
                transport=server.transport,
                state=OFF,
                reason="It is turned off for this workspace.",
                is_off=True,
            )
            for server in off
        ]

    async def connect_again(self, workspace: str, root: Path, name: str) -> ServerState | None:
        """Connect to a server at once, and anew; how it is after a moment. None if it is off in
        this workspace, or not there."""
        for connection in self._connections_of(workspace, root):
            if connection.config.name == name and not self._is_stopped:
                connection.connect_again()
                await connection.wait_connected()
                return self._describe(connection.config, workspace)
        return None

    def count_states(self) -> dict[str, int]:
        """How many connections are in which state."""
        counts = dict.fromkeys((CONNECTING, READY, FAILED, OFF), 0)
        for connection in list(self._connections.values()):
            counts[connection.state] += 1
        return counts

    def _describe(self, server: ServerConfig, workspace: str) -> ServerState:
        connection = self._connections.get(self._key(server, workspace))
        if connection is None:
            return ServerState(
                name=server.name, transport=server.transport, state=OFF, reason=UNUSED
            )
        offers = connection.offers
        return ServerState(
            name=server.name,
            transport=server.transport,
            state=connection.state,
            reason=connection.reason,
            title=connection.title,
            tools=tuple(offer.own_name for offer in offers.offers),
            left_out=offers.left_out,
            since=connection.since,
        )

    def _key(self, server: ServerConfig, workspace: str) -> tuple[str, str]:
        is_own = server.is_program or self.config.is_own(workspace, server.name)
        return server.name, workspace if is_own else ""

    def _connections_of(self, workspace: str, root: Path) -> list[ToolServerConnection]:
        return [
            self._connection(server, workspace, root)
            for server in self.config.servers_of(workspace)
        ]

    def _connection(
        self, server: ServerConfig, workspace: str, root: Path | None
    ) -> ToolServerConnection:
        key = self._key(server, workspace)
        root = root if server.is_program else None
        connection = self._connections.get(key)
        if connection is not None and connection.root != root:  # the workspace has moved
            self._close(connection)
            connection = None
        if connection is None:
            connection = ToolServerConnection(server, root=root, timing=self._timing)
            self._connections[key] = connection
            self._tools.pop(key, None)
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep())
        return connection

    def _tools_by(self, key: tuple[str, str], connection: ToolServerConnection) -> tuple[Tool, ...]:
        """Made once for each list that the server gave."""
        version, tools = self._tools.get(key, (0, ()))
        if version != connection.version:
            version = connection.version
            tools = tuple(make_tool(connection, offer) for offer in connection.offers.offers)
            self._tools[key] = version, tools
        return tools

    async def _sweep(self) -> None:
        """End programs that nobody uses."""
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._timing.idle))
            self.close_unused()

    def close_unused(self) -> None:
        latest = monotonic() - self._timing.idle
        for key, connection in list(self._connections.items()):
            is_shared = key[1] == ""
            if not is_shared and not connection.open_calls and connection.last_used < latest:
                del self._connections[key]
                self._tools.pop(key, None)
                self._close(connection)

    def _close(self, connection: ToolServerConnection) -> None:
        task = asyncio.create_task(connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
