"""The tool servers of this process, which are connected when they are needed.

No run waits for a connection for long. A server with an address is shared by the workspaces that
may use it. A program runs once for each workspace, in its folder.
"""

import asyncio
import base64
import fcntl
import importlib
import json
import logging
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from conversations.agent.tools.read_file import save_file
from conversations.agent.tools.tool import Tool, ToolContext, ToolResult
from conversations.agent.undo.trees import FolderWatch, watched
from conversations.archive.file_types import examine
from conversations.archive.tool_server_grants import (
    MAX_SIGN_IN_AGE,
    ServerKey,
    begin_sign_in,
    finish_sign_in,
    forget_grant,
    read_answer,
    read_secrets,
    replace_tokens,
    save_secrets,
    save_sign_in,
)
from conversations.domain.errors import Rejected, Unavailable
from conversations.domain.messages import say
from conversations.domain.text import one_line, storable
from conversations.domain.tool_calls import CHANGES, CallPlan

from .config import CallRefused, GrantStore, McpConfig, McpError, ServerConfig, ServerFailed
from .connection import (
    CONNECTING,
    FAILED,
    MAX_OWN_NAME_CHARS,
    OFF,
    PREFIX,
    READY,
    ConnectionTiming,
    PromptOffer,
    ResourceOffer,
    ToolOffer,
    ToolServerConnection,
    load_session,
)

logger = logging.getLogger(__name__)

MAX_FILES = 10  # Images and PDFs that are stored per result

SWEEP_SECONDS = 60.0
LOCK_PAUSE_SECONDS = 0.1  # Between two attempts to get a lock
ANSWER_PAUSE_SECONDS = 0.3  # Between two attempts to read the answer to a sign-in

_WORD = re.compile(r'"([^"]*)"|\S+')

UNUSED = say("Starts when it is needed.")


async def make_result(context: ToolContext, server: str, data: Mapping[str, Any]) -> ToolResult:
    """Return the result of a call for the model and the row.

    Text is kept as it is. Images and PDFs are stored and shown. All other content is described.
    """
    output, files = await asyncio.to_thread(_split_blocks, server, data)
    blocks = [await save_file(context, **file) for file in files]
    output = output or ("Shown below." if blocks else "(The tool returned no output.)")
    return ToolResult(ok=not data["isError"], output=output, blocks=blocks)


def _split_blocks(server: str, data: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    texts: list[str] = []
    files: list[dict[str, Any]] = []
    problems: list[str] = []

    def take(blob: str, name: str) -> None:
        try:
            raw = base64.b64decode(blob, validate=True)
        except ValueError:
            texts.append("[A damaged image.]")
            return
        if len(raw) > settings.LOOM.max_attachment_bytes:
            texts.append(f"[An image of {len(raw):,} bytes, too large to show.]")
            return
        if len(files) + len(problems) >= MAX_FILES:
            texts.append("[One more image.]")
            return
        try:
            content = examine(raw, name)
        except Rejected as error:
            problems.append(f"[An image that cannot be shown: {error.message}]")
            return
        ending = f".{content.media_type.rpartition('/')[2]}"
        named = name if name.lower().endswith(ending) else f"{name}{ending}"
        files.append({"data": raw, "name": named, "content": content})

    for part in data["content"]:
        kind = part["type"]
        if kind == "text":
            texts.append(part["text"])
        elif kind == "image":
            take(part["data"], f"{server}-{len(files) + len(problems) + 1}")
        elif kind == "resource":
            embedded = part["resource"]
            uri, media = _line(embedded["uri"]), _line(embedded.get("mimeType"))
            if "text" in embedded:
                texts.append(f"[Resource {uri}]\n{embedded['text']}")
            elif media.startswith(("image/", "application/pdf")):
                take(embedded["blob"], uri.rpartition("/")[2] or "resource")
            else:
                size = len(embedded["blob"]) * 3 // 4
                texts.append(f"[Resource {uri}: {media or 'data'}, about {size:,} bytes]")
        elif kind == "audio":
            texts.append(f"[Audio, {_line(part['mimeType'])}: not supported.]")
        else:  # a link to a resource
            words = [_line(part.get(name)) for name in ("title", "name", "description", "mimeType")]
            about = ", ".join(word for word in words if word)
            texts.append(f"[Resource {_line(part['uri'])}: {about}]")
    structured = data.get("structuredContent")
    if structured is not None and not any(texts):
        texts.append(json.dumps(structured, ensure_ascii=False, indent=2))
    output = storable("\n\n".join(text for text in (*texts, *problems) if text))
    limit: int = settings.LOOM.max_output_bytes
    encoded = output.encode()
    if len(encoded) > limit:
        beginning = encoded[:limit].decode("utf-8", "ignore")
        output = f"{beginning}\n\n[{len(encoded) - limit:,} more bytes of output were dropped.]"
    return output, files


async def _load_oauth() -> Any:
    """Return the module, imported in a thread and after the module that a connection imports.

    If two threads imported them at once, the SDK's circular imports would deadlock.
    """
    await load_session()
    return await asyncio.to_thread(importlib.import_module, "conversations.agent.mcp.oauth")


def split_words(text: str, max_words: int) -> list[str]:
    """Return at most ``max_words`` words. The last one has the rest of the text."""
    words: list[str] = []
    rest = text.strip()
    while rest and len(words) < max_words - 1:
        match = _WORD.match(rest)
        assert match is not None
        words.append(match[1] if match[1] is not None else match[0].rstrip())
        rest = rest[match.end() :].lstrip()
    if not rest or not max_words:
        return words
    match = _WORD.fullmatch(rest)
    return [*words, rest if match is None or match[1] is None else match[1]]


def _write_messages(server: str, data: Mapping[str, Any]) -> str:
    """Return the messages as one text. Messages that are not from a user begin with their role."""
    texts = []
    for message in data["messages"]:
        output, _ = _split_blocks(server, {"content": [message["content"]]})
        is_own = message["role"] == "user"
        texts.append(output if is_own else f"{message['role']}: {output}")
    return "\n\n".join(text for text in texts if text.strip())


def _line(text: str | None) -> str:
    return one_line(storable(text or ""), limit=300)


def make_tool(
    config: ServerConfig, offer: ToolOffer, find: Callable[[Path], ToolServerConnection]
) -> Tool:
    """Make a tool from a server's offer.

    The server defines what the tool does, so the plan shows the arguments and where they are sent.
    If the description differs from the approved one, the call is refused. ``find`` returns the
    server's current connection, because a call may wait for longer than a connection lasts.
    """
    server = config.name

    async def plan(context: ToolContext, arguments: dict[str, Any]) -> CallPlan | ToolResult:
        host = urlsplit(config.url).hostname
        basis = context.basis or offer.basis  # Keep the basis that was approved
        return CallPlan(
            effect=offer.effect,
            # The whole name, because a shortened one looks complete where there is room for more.
            summary=say(
                "%(tool)s of %(server)s",
                tool=one_line(offer.own_name, limit=MAX_OWN_NAME_CHARS),
                server=server,
            ),
            command=json.dumps(arguments, ensure_ascii=False, indent=2),
            note=say("The arguments are sent to %(host)s.", host=host) if host else "",
            kind_key=f"mcp:{server}:{offer.own_name}:{basis}",
            kind_label=say(
                "calls of %(tool)s of %(server)s",
                tool=one_line(offer.own_name, limit=100),
                server=server,
            ),
            basis=basis,
        )

    async def run(context: ToolContext, arguments: dict[str, Any]) -> ToolResult:
        watch, result = FolderWatch(), None
        try:
            async with AsyncExitStack() as stack:
                # A program in the workspace's folder may change files there. Its changes are
                # recorded, so they can be undone.
                if config.is_program and offer.effect == CHANGES:
                    watching = watched(
                        context.root,
                        author=context.author,
                        write=context.write,
                        report=context.report,
                    )
                    watch = await stack.enter_async_context(watching)
                data = await find(context.root).call(
                    offer.own_name,
                    arguments,
                    report=context.report,
                    ask=partial(context.ask, server),
                    basis=context.basis,
                )
        except CallRefused as error:
            words = str(error)
        except McpError as error:
            words = f"The tool server {server} is not answering. {error}"
        except Rejected as error:
            words = error.message
        else:
            result = await make_result(context, server, data)
        result = result or ToolResult(ok=False, output=words)
        return replace(result, output=f"{result.output}\n\n{watch.note}") if watch.note else result

    return Tool(
        name=offer.name,
        description=offer.description,
        arguments=offer.input_schema,
        run=run,
        effect=offer.effect,
        plan=plan if offer.effect == CHANGES else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The state of a server in a workspace, as people see it.

    ``left_out`` has sentences about tools that are not offered. ``is_off`` is true if the
    configuration turns the server off in this workspace. ``needs_sign_in`` is true if a person has
    to sign in at the server's authorization server.
    """

    name: str
    transport: str
    state: str
    reason: str = ""
    title: str = ""
    tools: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    since: datetime | None = None
    is_off: bool = False
    needs_sign_in: bool = False

    @property
    def is_failed(self) -> bool:
        return self.state == FAILED


type Cross = Callable[..., Awaitable[Any]]
"""Runs a function of the archive with its arguments, in a thread for the database."""


def _read_contents(uri: str, contents: Sequence[Mapping[str, Any]]) -> list[tuple[str, bytes]]:
    files = []
    for content in contents[:MAX_FILES]:
        name = (content["uri"] or uri).rstrip("/").rpartition("/")[2] or "resource"
        try:
            data = (
                content["text"].encode()
                if "text" in content
                else base64.b64decode(content["blob"], validate=True)
            )
        except ValueError as error:
            raise Rejected("%(name)s is damaged.", name=name, code="resource_failed") from error
        files.append((name, data))
    if not files:
        raise Rejected("%(uri)s is empty.", uri=one_line(uri, limit=200), code="resource_failed")
    return files


@asynccontextmanager
async def refresh_lock(key: ServerKey) -> AsyncIterator[None]:
    """Hold a lock that one process has at a time, until it is released or the process ends."""
    path = Path(settings.LOOM.data_dir) / "run" / f"tool-server-{key.workspace}-{key.name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            await asyncio.sleep(LOCK_PAUSE_SECONDS)
        yield


class ToolServers:
    """All tool servers of the process.

    They belong to the runtime's event loop. Methods that only read may be called from any thread.
    """

    def __init__(
        self,
        config: McpConfig,
        timing: ConnectionTiming | None = None,
        *,
        read: Cross | None = None,
        write: Cross | None = None,
    ) -> None:
        self.config = config
        self._read = read
        self._write = write
        self._signing_in: set[asyncio.Task[None]] = set()
        self.is_used = not config.is_empty
        self._timing = timing or ConnectionTiming()
        self._connections: dict[tuple[str, str], ToolServerConnection] = {}
        self._tools: dict[tuple[str, str], tuple[int, tuple[Tool, ...]]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._is_stopped = False

    async def start(self) -> None:
        """Start connecting to the servers that need no workspace."""
        if self.config.warning:
            logger.warning("mcp_config_open", extra={"fields": {"reason": self.config.warning}})
        for server in self.config.servers.values():
            if not server.is_program:
                self._connection(server, "", None).use()

    async def stop(self) -> None:
        """Close all connections and wait until they are closed."""
        self._is_stopped = True
        for task in self._signing_in:
            task.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in self._connections.values():
            self._close(connection)
        self._connections = {}
        if self._closing:
            await asyncio.wait(self._closing)

    async def prepare(self, workspace: str, root: Path) -> Mapping[str, Tool]:
        """Connect to the workspace's servers and return the tools of those that are connected.

        Wait a moment for servers that have just begun to connect.
        """
        if self._is_stopped:
            return {}
        connections = self._connections_of(workspace, root)
        for connection in connections:
            connection.use()
        await asyncio.gather(*(connection.wait_connected() for connection in connections))
        return self.tools_of(workspace)

    async def wait_for(self, names: Iterable[str], workspace: str, root: Path) -> None:
        """Wait for the servers of these tools, for the whole time that connecting may take.

        The caller is about to execute calls of these tools.
        """
        tool_names = [name for name in names if name.startswith(PREFIX)]
        if not tool_names or self._is_stopped:
            return
        for connection in self._connections_of(workspace, root):
            if any(name.startswith(f"{PREFIX}{connection.config.name}__") for name in tool_names):
                connection.use()
                await connection.wait_connected(seconds=self._timing.connect)

    def tools_of(self, workspace: str) -> Mapping[str, Tool]:
        tools: dict[str, Tool] = {}
        for server, connection in self._ready_of(workspace):
            key = self._key(server, workspace)
            version, server_tools = self._tools.get(key, (0, ()))
            if version != connection.version:  # Tools are made once for each list of the server
                version = connection.version
                find = partial(self._connection, server, workspace)
                server_tools = tuple(make_tool(server, offer, find) for offer in connection.offers)
                self._tools[key] = version, server_tools
            tools |= {tool.name: tool for tool in server_tools}
        return MappingProxyType(dict(sorted(tools.items())))

    def prompts_of(self, workspace: str) -> dict[str, PromptOffer]:
        """Return the prompts of the connected servers by the name to type: ``server:prompt``."""
        prompts: dict[str, PromptOffer] = {}
        for server, connection in self._ready_of(workspace):
            prompts |= {f"{server.name}:{prompt.name}": prompt for prompt in connection.prompts}
        return prompts

    def resources_of(self, workspace: str) -> dict[str, ResourceOffer]:
        """Return the resources that the servers list by the name to type: ``server:uri``."""
        resources: dict[str, ResourceOffer] = {}
        for server, connection in self._ready_of(workspace):
            resources |= {
                f"{server.name}:{resource.uri}": resource for resource in connection.resources
            }
        return resources

    async def read_resource(self, workspace: str, root: Path, name: str) -> list[tuple[str, bytes]]:
        """Return the names and bytes of files with the contents of the resource ``server:uri``.

        The resource need not be listed. Raise Rejected.
        """
        server, _, uri = name.partition(":")
        connection = self._get(workspace, root, server, code="resource_failed")
        connection.use()
        await connection.wait_connected(seconds=self._timing.connect)
        try:
            contents = await connection.read_resource(uri)
        except McpError as error:
            raise Rejected(
                "The tool server %(server)s did not return %(uri)s. %(reason)s",
                server=server,
                uri=one_line(uri, limit=200),
                reason=error.message,
                code="resource_failed",
            ) from error
        return await asyncio.to_thread(_read_contents, uri, contents)

    async def write_prompt(self, workspace: str, root: Path, name: str, words: str) -> str:
        """Return the text of a prompt with these words as its arguments. Raise Rejected.

        Each argument gets one word, and the last one gets the rest. Words in quotes count as one.
        """
        offer = self.prompts_of(workspace)[name]
        values = split_words(words, len(offer.arguments))
        arguments = dict(zip(offer.arguments, values, strict=False))
        missing_names = offer.required - arguments.keys()
        missing = [argument for argument in offer.arguments if argument in missing_names]
        if missing:
            raise Rejected(
                "/%(name)s needs: %(arguments)s.",
                name=name,
                arguments=", ".join(missing),
                code="prompt_argument_missing",
            )
        if words and not offer.arguments:
            raise Rejected(
                "/%(name)s takes no argument.", name=name, code="prompt_argument_missing"
            )
        server = name.partition(":")[0]
        connection = self._get(workspace, root, server, code="prompt_failed")
        try:
            data = await connection.get_prompt(offer.name, arguments)
        except McpError as error:
            raise Rejected(
                "The tool server %(server)s did not return the prompt. %(reason)s",
                server=server,
                reason=error.message,
                code="prompt_failed",
            ) from error
        return await asyncio.to_thread(_write_messages, server, data)

    def explain(self, name: str, workspace: str) -> str:
        """Return why a server does not provide this tool now, or an empty string."""
        for state in self.describe(workspace):
            if name.startswith(f"{PREFIX}{state.name}__") and state.state != READY:
                return f"The tool server {state.name} is not answering. {state.reason}".strip()
        return ""

    def describe(self, workspace: str) -> list[ServerState]:
        """Return the states of the workspace's servers by name; servers that are off come last."""
        return [
            self._describe(server, workspace, is_off=is_off)
            for is_off in (False, True)
            for server in self.config.servers_of(workspace, off=is_off)
        ]

    async def connect_again(self, workspace: str, root: Path, name: str) -> ServerState | None:
        """Connect to a server anew at once, and return its state after a moment.

        Return None if the server does not exist or is off in this workspace.
        """
        connection = self._find(workspace, root, name)
        if connection is None:
            return None
        connection.connect_again()
        await connection.wait_connected()
        return self._describe(connection.config, workspace)

    def is_shared(self, workspace: str, name: str) -> bool:
        """Return whether the server is the installation's and not the workspace's own."""
        return not self.config.is_own(workspace, name)

    async def begin_sign_in(
        self, workspace: str, root: Path, name: str, *, user_pk: int, redirect_uri: str
    ) -> str:
        """Start the sign-in of a person at a server's authorization server. Return the address.

        The authorization server redirects the person to ``redirect_uri``. Raise Rejected with a
        sentence.
        """
        connection = self._signable(workspace, root, name)
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        work = self._sign_in(connection, workspace, user_pk, redirect_uri, address)
        task = asyncio.create_task(work)
        self._signing_in.add(task)
        task.add_done_callback(self._signing_in.discard)
        return await address

    async def sign_out(self, workspace: str, root: Path, name: str) -> None:
        """Delete a server's grant and revoke it at its authorization server. Raise Rejected."""
        connection = self._signable(workspace, root, name)
        key = self._grant_key(connection.config, workspace)
        assert self._read is not None
        assert self._write is not None
        async with refresh_lock(key):  # Tokens of a refresh in progress have to be revoked too
            grant = await self._read(read_secrets, key)
            await self._write(forget_grant, key)
        oauth = await _load_oauth()
        await oauth.revoke(connection.config, grant)
        connection.connect_again()
        await connection.wait_connected()

    def _signable(self, workspace: str, root: Path, name: str) -> ToolServerConnection:
        connection = self._find(workspace, root, name)
        if connection is None or not connection.config.can_sign_in or connection.grants is None:
            raise Rejected("The tool server %(name)s has no sign-in.", name=name, code="no_sign_in")
        return connection

    async def _sign_in(
        self,
        connection: ToolServerConnection,
        workspace: str,
        user_pk: int,
        redirect_uri: str,
        address: "asyncio.Future[str]",
    ) -> None:
        config, read, write = connection.config, self._read, self._write
        assert read is not None
        assert write is not None
        key, states = self._grant_key(config, workspace), list[str]()

        async def show(url: str, state: str) -> None:
            states.append(state)
            await write(begin_sign_in, key, state=state, user_pk=user_pk, slug=workspace)
            address.set_result(url)

        async def wait_for_answer(state: str) -> dict[str, str]:
            async with asyncio.timeout(MAX_SIGN_IN_AGE.total_seconds()):
                # Another process may write the answer.
                while (answer := await read(read_answer, key, state)) is None:  # noqa: ASYNC110
                    await asyncio.sleep(ANSWER_PAUSE_SECONDS)
            return dict(answer)

        problem = ""
        try:
            oauth = await _load_oauth()
            granted = await oauth.sign_in(
                config,
                await read(read_secrets, key),
                redirect_uri=redirect_uri,
                show=show,
                wait_for_answer=wait_for_answer,
            )
            await write(save_sign_in, key, states[0], granted)
            connection = self._connection(config, workspace, None)  # The current connection
            connection.connect_again()
            await connection.wait_connected(seconds=self._timing.connect)
        except (ServerFailed, Rejected) as error:
            problem = error.message
        except TimeoutError:
            problem = say("Nobody signed in within ten minutes.")
        except Exception:
            logger.exception("mcp_sign_in_failed")
            problem = say("The sign-in failed. See the server's log for the reason.")
        finally:
            if not address.done():
                reason = problem or say("The server is shutting down.")
                refusal = say("%(name)s: %(reason)s", name=config.name, reason=reason)
                address.set_exception(Rejected(refusal, code="no_sign_in"))
            if states:
                await write(finish_sign_in, key, states[0], problem=problem)

    def _grant_key(self, server: ServerConfig, workspace: str) -> ServerKey:
        name, slug = self._key(server, workspace)
        return ServerKey(workspace=slug, name=name, url=server.url)

    def _grants_of(self, server: ServerConfig, workspace: str) -> GrantStore | None:
        if server.is_program or self._read is None or self._write is None:
            return None
        key = self._grant_key(server, workspace)
        return GrantStore(
            read=partial(self._read, read_secrets, key),
            save=partial(self._write, save_secrets, key),
            replace=partial(self._write, replace_tokens, key),
            refresh_lock=partial(refresh_lock, key),
        )

    def count_states(self) -> dict[str, int]:
        counts: dict[str, int] = dict.fromkeys((CONNECTING, READY, FAILED, OFF), 0)
        for connection in list(self._connections.values()):
            counts[connection.state] += 1
        return counts

    def _describe(
        self, server: ServerConfig, workspace: str, *, is_off: bool = False
    ) -> ServerState:
        connection = self._connections.get(self._key(server, workspace))
        if is_off or connection is None:
            reason = say("Turned off for this workspace.") if is_off else UNUSED
            return ServerState(
                name=server.name,
                transport=server.transport,
                state=OFF,
                reason=reason,
                is_off=is_off,
            )
        return ServerState(
            name=server.name,
            transport=server.transport,
            state=connection.state,
            reason=connection.reason,
            title=connection.title,
            tools=tuple(offer.own_name for offer in connection.offers),
            left_out=connection.left_out,
            since=connection.since,
            needs_sign_in=connection.needs_sign_in,
        )

    def _key(self, server: ServerConfig, workspace: str) -> tuple[str, str]:
        is_own = server.is_program or self.config.is_own(workspace, server.name)
        return server.name, workspace if is_own else ""

    def _connections_of(self, workspace: str, root: Path) -> list[ToolServerConnection]:
        servers = self.config.servers_of(workspace)
        return [self._connection(server, workspace, root) for server in servers]

    def _find(self, workspace: str, root: Path, name: str) -> ToolServerConnection | None:
        for server in self.config.servers_of(workspace):
            if server.name == name:
                return self._connection(server, workspace, root)
        return None

    def _get(self, workspace: str, root: Path, name: str, *, code: str) -> ToolServerConnection:
        """Return a server's connection. Raise Rejected if it does not exist or is off here."""
        connection = self._find(workspace, root, name)
        if connection is None:
            raise Rejected(
                "The tool server %(server)s does not exist in this workspace.",
                server=name,
                code=code,
            )
        return connection

    def _ready_of(self, workspace: str) -> Iterator[tuple[ServerConfig, ToolServerConnection]]:
        for server in self.config.servers_of(workspace):
            connection = self._connections.get(self._key(server, workspace))
            if connection is not None and connection.state == READY:
                yield server, connection

    def _connection(
        self, server: ServerConfig, workspace: str, root: Path | None
    ) -> ToolServerConnection:
        """Return the current connection, or a new one. Raise Unavailable after ``stop``."""
        if self._is_stopped:
            raise Unavailable("The server is stopping. Try again in a moment.", code="stopping")
        key = self._key(server, workspace)
        root = root if server.is_program else None
        connection = self._connections.get(key)
        if connection is not None and connection.root != root:  # The workspace has moved
            self._close(connection)
            connection = None
        if connection is None:
            connection = ToolServerConnection(
                server, root=root, timing=self._timing, grants=self._grants_of(server, workspace)
            )
            self._connections[key] = connection
            self._tools.pop(key, None)
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._close_unused_forever())
        return connection

    async def _close_unused_forever(self) -> None:
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
