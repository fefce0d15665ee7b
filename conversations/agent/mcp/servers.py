"""The servers of this process: connected when they are needed, never waited for long.

A server that is reached by an address is shared by the workspaces that may use it; a program runs
once for each workspace, in its folder.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic
from types import MappingProxyType

from conversations.agent.tools.tool import Tool

from .calls import make_tool
from .config import McpConfig, ServerConfig
from .connection import CONNECTING, FAILED, OFF, READY, Timing, ToolServerConnection
from .offers import PREFIX

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
        self._timing = timing or Timing()
        self._connections: dict[tuple[str, str], ToolServerConnection] = {}
        self._tools: dict[tuple[str, str], tuple[int, tuple[Tool, ...]]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._is_stopped = False

    @property
    def is_used(self) -> bool:
        return not self.config.is_empty

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
        await asyncio.gather(*(connection.settle() for connection in connections))
        return self.tools_of(workspace)

    async def wait_for(self, names: Iterable[str], workspace: str, root: Path) -> None:
        """Wait for the servers of these tools, as long as connecting may take: calls of them are to
        be carried out."""
        wanted = [name for name in names if name.startswith(PREFIX)]
        if not wanted or not self.is_used or self._is_stopped:
            return
        for connection in self._connections_of(workspace, root):
            if any(name.startswith(f"{PREFIX}{connection.config.name}__") for name in wanted):
                connection.use()
                await connection.settle(seconds=self._timing.connect)

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
                await connection.settle()
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
