"""A session with one server, by the SDK.

Only this module and :mod:`.oauth` import the SDK. They are imported when there is a server to
connect to, because that takes most of a second.

The SDK's contexts are entered and left by one task, that of the connection. Any task may send
requests. If a request is cancelled, the server is notified.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client import streamable_http
from mcp.client.client import Client
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from conversations.agent.sandbox.command_run import run_to_completion
from conversations.domain.messages import say
from conversations.domain.text import (
    MAX_JSON_VALUES,
    an_object,
    has_more_values,
    load_json,
    one_line,
    storable,
    write_json,
)
from conversations.domain.tool_questions import ACCEPT, SAMPLING

from .config import (
    Ask,
    CallRefused,
    GrantStore,
    McpError,
    SamplingLimits,
    ServerConfig,
    ServerFailed,
    SignInNeeded,
)
from .http import ServerTransport
from .program import (
    FLOOD_PAUSE_SECONDS,
    MAX_LINE_BYTES,
    MAX_NOISE_BYTES,
    NOISE_LINES_PER_PAUSE,
    ServerProcess,
    ServerProcessError,
)

CONNECT_TIMEOUT_SECONDS = 30.0
MIN_READ_TIMEOUT_SECONDS = 300.0  # A stream of changes may be silent for long
MAX_PAGES = 50  # Pages of a list that are read

LISTEN_RETRY_SECONDS = 2.0
WRITE_SECONDS = 20.0

MAX_ROUNDS = 10  # How often a server may ask for something during a call
SAMPLING_REFUSED = -1  # The protocol's code for a request that a person has denied
TASK_TTL_MS = 3_600_000  # How long a server keeps a task: the maximum duration of a call
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.5, 10.0  # Between two queries of a task's state
STATE_PAUSE_SECONDS = 0.25  # Before a call is repeated for which the server only needs more time

LIST_CHANGES = (types.ToolListChangedNotification, types.PromptListChangedNotification)

type Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]

_ANSWER: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
SIGN_IN_NEEDED = SignInNeeded().message
# The SDK's messages for a lost connection. The messages are compared, because servers may use the
# SDK's code for it for errors of their own: it is the first code of that range.
_LOST = ("Session terminated", "Connection closed")
_STREAM_LOST = "SSE stream "

for _name in ("mcp", "client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # The state of a server is logged instead
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class _ToolPage(BaseModel):
    tools: list[Any]
    cursor: str | None = Field(default=None, alias="nextCursor")


class ToolServerSession:
    """An open session. Methods raise ServerFailed if the connection is lost.

    The SDK checks the types of all that a server sends, except for its list of tools. Texts, names
    and sizes are unchecked.
    """

    def __init__(self, client: Client, root: Path | None, config: ServerConfig) -> None:
        self._client = client
        self._root = root
        self._sampling = config.sampling
        info = client.server_info
        self.title = one_line(storable(f"{info.name} {info.version}"), limit=80) if info else ""

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the tools as the server lists them, unchecked."""
        tools: list[dict[str, Any]] = []
        params = None
        for _ in range(MAX_PAGES):
            with _translated():
                # The raw result, because the SDK rejects the whole page if it cannot read one tool.
                result = await self._send_raw(types.ListToolsRequest(params=params))
                page = _ToolPage.model_validate(result)
            is_whole = params is None and not page.cursor
            tools += self._without_unfit(page.tools, is_whole=is_whole)
            if not page.cursor:
                break
            params = types.PaginatedRequestParams(cursor=page.cursor)
        return tools

    def _without_unfit(self, listed: list[Any], *, is_whole: bool) -> list[dict[str, Any]]:
        """Return the tools whose arguments can be sent as the headers that they ask for.

        The SDK stores these headers for calls of the tools.
        """
        pairs = [(_read_tool(tool), an_object(tool)) for tool in listed]
        page = types.ListToolsResult(tools=[read for read, _ in pairs if read is not None])
        session: Any = self._client.session
        fit = set(map(id, session._absorb_tool_listing(page, complete=is_whole).tools))
        return [tool for read, tool in pairs if read is None or id(read) in fit]

    async def list_prompts(self) -> list[dict[str, Any]]:
        """Return the prompts that the server lists; empty if it supports none."""
        if self._client.server_capabilities.prompts is None:
            return []
        return await _list_all(self._client.list_prompts, "prompts")

    async def list_resources(self) -> list[dict[str, Any]]:
        """Return the resources that the server lists; empty if it supports none."""
        if self._client.server_capabilities.resources is None:
            return []
        return await _list_all(self._client.list_resources, "resources")

    async def read_resource(self, uri: str) -> list[dict[str, Any]]:
        """Return the contents of a resource. Raise CallRefused."""
        with _translated():
            result = await self._client.read_resource(uri, cache_mode="bypass")
        return [_plain(content) for content in result.contents]

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        """Return the messages of a prompt. Raise CallRefused."""
        with _translated():
            return _plain(await self._client.get_prompt(name, arguments))

    @property
    def runs_tasks(self) -> bool:
        """Whether calls can run as tasks, whose results are read later (protocol 2025-11-25)."""
        tasks = self._client.server_capabilities.tasks
        requests = tasks.requests if tasks else None
        return bool(requests and requests.tools and requests.tools.call)

    async def begin_task(self, name: str, arguments: dict[str, Any]) -> str:
        """Start the call of a tool as a task and return its id. Raise CallRefused."""
        metadata = types.TaskMetadata(ttl=TASK_TTL_MS)
        params = types.CallToolRequestParams(name=name, arguments=arguments, task=metadata)
        with _translated():
            # The SDK has types for tasks, but its session accepts only a call's result as the
            # response to this request.
            result = await self._send_raw(types.CallToolRequest(params=params))
            return types.CreateTaskResult.model_validate(result, by_name=False).task.task_id

    async def finish_task(self, task: str, *, report: Callable[[str], None]) -> dict[str, Any]:
        """Wait for the result of a task and return it. Raise CallRefused."""
        params = types.GetTaskPayloadRequestParams(task_id=task)
        asking = asyncio.create_task(
            self._send(types.GetTaskPayloadRequest(params=params), types.CallToolResult)
        )
        status_request = types.GetTaskRequest(params=types.GetTaskRequestParams(task_id=task))
        pause = MIN_POLL_SECONDS
        last_message = ""
        try:
            while not (await asyncio.wait({asking}, timeout=pause))[0]:
                status = await self._send(status_request, types.GetTaskResult)
                if status.status_message and status.status_message != last_message:
                    last_message = status.status_message
                    report(f"{storable(last_message)}\n")
                pause = min(
                    max((status.poll_interval or 0) / 1000, MIN_POLL_SECONDS), MAX_POLL_SECONDS
                )
            return _plain(asking.result())
        finally:
            asking.cancel()
            await asyncio.wait({asking})

    async def cancel_task(self, task: str) -> None:
        params = types.CancelTaskRequestParams(task_id=task)
        await self._send(types.CancelTaskRequest(params=params), types.CancelTaskResult)

    async def _send[T: types.Result](
        self, request: types.Request[Any, Any], result_type: type[T]
    ) -> T:
        with _translated():
            return await self._client.session.send_request(request, result_type)

    async def _send_raw(self, request: types.Request[Any, Any]) -> Any:
        """Send a request and return the result as it came."""
        data, options = _plain(request), dict[str, Any]()
        session: Any = self._client.session
        session._stamp(data, options)
        return await session._dispatcher.send_raw_request(
            data["method"], data.get("params"), options
        )

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        report: Callable[[str], None],
        ask: Ask,
    ) -> dict[str, Any]:
        """Call a tool and return its result. Raise CallRefused.

        The tool's output schema is not applied, because that would run the server's patterns here.
        ``ask`` asks a person on behalf of the server: it takes the parameters of an elicitation or
        of sampling, and returns the result.
        """

        async def show(progress: float, total: float | None, message: str | None) -> None:
            out_of = f"/{total:g}" if total is not None else ""
            report(f"{progress:g}{out_of}{' ' + message if message else ''}\n")

        responses: dict[str, Any] = {}
        for _ in range(MAX_ROUNDS):
            params = types.CallToolRequestParams(name=name, arguments=arguments, **responses)
            with _translated():
                result = await self._client.session.send_request(
                    types.CallToolRequest(params=params), _ANSWER, progress_callback=show
                )
            if not isinstance(result, types.InputRequiredResult):
                return _plain(result)
            responses = {
                "input_responses": await self._respond(result.input_requests or {}, ask),
                "request_state": result.request_state,
            }
            if not result.input_requests:
                await asyncio.sleep(STATE_PAUSE_SECONDS)
        raise CallRefused(say("The server asked more than %(limit)s times.", limit=MAX_ROUNDS))

    async def _respond(self, requests: Mapping[str, Any], ask: Ask) -> dict[str, Any]:
        responses: dict[str, Any] = {}
        for key, request in requests.items():
            if isinstance(request, types.ElicitRequest):
                answer = await ask(_plain(request.params))
                responses[key] = types.ElicitResult.model_validate(answer)
            elif isinstance(request, types.CreateMessageRequest) and self._sampling is not None:
                responses[key] = await _sample(request.params, self._sampling, ask)
            elif isinstance(request, types.ListRootsRequest) and self._root is not None:
                responses[key] = _list_roots(self._root)
            else:
                raise CallRefused(
                    say(
                        "The server asked for %(what)s, which is not available to it.",
                        what=request.method,
                    )
                )
        return responses

    async def listen(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` when the server's list changes.

        This is for servers that have to be subscribed to. Other servers send notifications by
        themselves.
        """
        tools = self._client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        while True:
            try:
                async with self._client.listen(tools_list_changed=True) as events:
                    async for _ in events:
                        on_change()
            except (ListenNotSupportedError, MCPError):
                return
            except (SubscriptionLost, TimeoutError):
                pass
            await asyncio.sleep(LISTEN_RETRY_SECONDS)
            on_change()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except MCPError as error:
        message = one_line(storable(error.error.message), limit=500)
        is_closed = error.error.code == types.CONNECTION_CLOSED
        if message in _LOST or (is_closed and message.startswith(_STREAM_LOST)):
            raise ServerFailed(say("The connection was closed.")) from error
        raise CallRefused(message or say("The server refused, without a reason.")) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        problem = one_line(storable(f"{path}: {first['msg']}"), limit=200)
        raise CallRefused(
            say("The server's response violates the protocol: %(reason)s.", reason=problem)
        ) from error


async def _sample(
    params: types.CreateMessageRequestParams, limits: SamplingLimits, ask: Ask
) -> types.CreateMessageResult:
    request = _plain(params) | {"maxTokens": max(1, min(params.max_tokens, limits.max_tokens))}
    answer = await ask(request | {"mode": SAMPLING})
    if answer["action"] != ACCEPT:
        raise CallRefused(answer.get("reason") or say("The request to the model was denied."))
    return types.CreateMessageResult.model_validate(answer["content"])


def _read_tool(tool: Any) -> types.Tool | None:
    """Return the parts of a tool that its calls need, or None if they are invalid."""
    with suppress(ValidationError, AttributeError):
        values = {"name": tool.get("name"), "inputSchema": tool.get("inputSchema")}
        return types.Tool.model_validate(values, by_name=False)
    return None


def _list_roots(root: Path) -> types.ListRootsResult:
    roots = [{"uri": root.as_uri(), "name": root.name}]
    return types.ListRootsResult.model_validate({"roots": roots})


async def _list_all(list_page: Callable[..., Awaitable[Any]], name: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = None
    for _ in range(MAX_PAGES):
        with _translated():
            page = await list_page(cursor=cursor)
        items += [_plain(item) for item in getattr(page, name)]
        cursor = page.next_cursor
        if not cursor:
            break
    return items


def _plain(model: Any) -> dict[str, Any]:
    data: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return data


@asynccontextmanager
async def open_session(
    config: ServerConfig,
    *,
    root: Path | None,
    on_change: Callable[[], None],
    on_end: Callable[[], None],
    on_question: Ask,
    grants: GrantStore | None = None,
) -> AsyncIterator[ToolServerSession]:
    """Connect to a server.

    ``root`` is the workspace's folder if the server may know it; a program runs there.
    ``on_change`` is called when the list of tools has changed. ``on_end`` is called when a program
    has ended, and the body has to end then. ``on_question`` is called when the server asks a person
    without naming the call.

    Raise ServerFailed with the reason if the connection breaks or the body raises an error. Raise
    SignInNeeded if ``grants`` has no grant that the server accepts.
    """
    reasons: list[str] = []  # Why the connection broke, from the code that knows the reason best

    async def notice(message: IncomingMessage) -> None:
        if isinstance(message, LIST_CHANGES):
            on_change()

    async def list_roots(_: ClientRequestContext) -> types.ListRootsResult:
        assert root is not None
        return _list_roots(root)

    async def elicit(
        context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        return types.ElicitResult.model_validate(await on_question(_plain(params)))

    async def sample(
        context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        assert config.sampling is not None
        try:
            return await _sample(params, config.sampling, on_question)
        except CallRefused as error:
            return types.ErrorData(code=SAMPLING_REFUSED, message=str(error))

    roots: Any = list_roots if root is not None else None
    try:
        async with AsyncExitStack() as stack:
            transport = (
                _program(config, root, reasons, on_end)
                if config.is_program
                else _http(config, reasons, grants)
            )
            client = Client(
                transport,
                cache=None,
                client_info=types.Implementation(name="loom-web", version="0.1.0"),
                message_handler=notice,
                list_roots_callback=roots,
                elicitation_callback=elicit,
                sampling_callback=sample if config.sampling is not None else None,
            )
            with _translated():
                await stack.enter_async_context(client)
            yield ToolServerSession(client, root, config)
    except Exception as error:
        if reasons == [SIGN_IN_NEEDED]:
            raise SignInNeeded from error
        raise ServerFailed(_describe(error, reasons)) from error


def _describe(error: BaseException, reasons: list[str]) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if reasons and not isinstance(error, httpx2.TransportError | ServerProcessError):
        return reasons[0]
    if isinstance(error, McpError):
        return error.message
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return say("It did not respond in time.")
    if isinstance(error, httpx2.TransportError | OSError):
        reason = one_line(str(error), limit=200) or type(error).__name__
        return say("It cannot be reached (%(reason)s).", reason=reason)
    # The SDK's own reason, such as an unsupported protocol version.
    text = one_line(storable(str(error)), limit=200) if isinstance(error, RuntimeError) else ""
    return say("The connection failed (%(reason)s).", reason=text or type(error).__name__)


@asynccontextmanager
async def _http(
    config: ServerConfig, reasons: list[str], grants: GrantStore | None
) -> AsyncIterator[Any]:
    auth: httpx2.Auth | None = None
    if grants is not None and (config.oauth.is_own_account or config.can_sign_in):
        from .oauth import make_auth

        def set_reason(words: str) -> None:
            reasons[:] = [words]

        auth = make_auth(config, grants, set_reason)

    async def explain_status(response: httpx2.Response) -> None:
        if response.status_code in (401, 403):
            reasons[:] = [say("It refused access (HTTP %(status)s).", status=response.status_code)]
        elif response.status_code >= 500:
            reasons[:] = [
                say("It responded with an error (HTTP %(status)s).", status=response.status_code)
            ]
        else:
            reasons.clear()

    timeout = httpx2.Timeout(
        CONNECT_TIMEOUT_SECONDS,
        read=max(MIN_READ_TIMEOUT_SECONDS, config.timeout_seconds + CONNECT_TIMEOUT_SECONDS),
    )
    client = httpx2.AsyncClient(
        auth=auth,
        headers={**config.headers, "Accept-Encoding": "identity"},
        timeout=timeout,
        transport=ServerTransport(config),
        event_hooks={"response": [explain_status]},
    )
    connecting = streamable_http_client(
        config.url, http_client=client, max_sse_event_size=MAX_LINE_BYTES
    )
    async with client, connecting as streams:
        yield streams


@asynccontextmanager
async def _program(
    config: ServerConfig, root: Path | None, reasons: list[str], on_end: Callable[[], None]
) -> AsyncIterator[Streams]:
    folder = config.folder or root or Path("/")
    program = await ServerProcess.start(config, folder=folder)
    to_us, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, to_it = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_read, program, to_us, reasons, on_end)
            group.start_soon(_write, program, to_it, reasons, on_end)
            try:
                yield incoming, outgoing
            finally:
                group.cancel_scope.cancel()
    finally:
        for stream in (to_us, incoming, outgoing, to_it):
            stream.close()
        with anyio.CancelScope(shield=True):
            await run_to_completion(program.stop())


async def _read(
    program: ServerProcess,
    to_us: MemoryObjectSendStream[SessionMessage | Exception],
    reasons: list[str],
    on_end: Callable[[], None],
) -> None:
    async with to_us:
        try:
            # Lines that are not messages are skipped. A server that sends only such lines is given
            # up with ServerProcessError.
            noise: int | None = 0
            passed_over = 0
            while (line := await program.read_line()) is not None:
                if has_more_values(line.decode(errors="replace"), MAX_JSON_VALUES):
                    raise ServerProcessError(say("It sent a message with too many values."))
                try:
                    message = _READER.validate_json(line)
                except ValueError:
                    if line.lstrip().startswith(b"{") and b'"jsonrpc"' in line:
                        raise ServerProcessError(say("It sent an unreadable message.")) from None
                    if noise is not None:
                        noise += len(line) + 1
                        if noise > MAX_NOISE_BYTES:
                            raise ServerProcessError(
                                say("It writes output that is not a message.")
                            ) from None
                    passed_over += 1
                    if passed_over % NOISE_LINES_PER_PAUSE == 0:
                        # Other tasks need the event loop too
                        await asyncio.sleep(FLOOD_PAUSE_SECONDS)
                    continue
                noise = None
                await to_us.send(SessionMessage(message))
            reasons.append(program.describe_end())
        except ServerProcessError as error:
            reasons.append(error.message)
        except anyio.BrokenResourceError:
            return  # The receiver has ended
        finally:
            on_end()


class _MessageReader:
    """A parser of messages, which also replaces the SDK's own for messages by HTTP."""

    def validate_json(self, data: str | bytes, *, by_name: bool = False) -> types.JSONRPCMessage:
        """Parse a message. Raise ValueError if it is invalid."""
        try:
            return types.jsonrpc_message_adapter.validate_json(data, by_name=by_name)
        except ValueError:
            # JavaScript writes half of a surrogate pair if it cuts a text within a character, which
            # Pydantic rejects. Other programs cut within the bytes of a character.
            text = data if isinstance(data, str) else data.decode(errors="replace")
            if "\\ud" not in text.lower() and "\ufffd" not in text:
                raise
            with suppress(ValueError, RecursionError):
                whole = storable(write_json(load_json(text)))
                return types.jsonrpc_message_adapter.validate_json(whole, by_name=by_name)
            raise  # Pydantic's error, because the SDK expects no other


_READER = _MessageReader()
_transport: Any = streamable_http
_transport.jsonrpc_message_adapter = _READER


async def _write(
    program: ServerProcess,
    to_it: MemoryObjectReceiveStream[SessionMessage],
    reasons: list[str],
    on_end: Callable[[], None],
) -> None:
    async with to_it:
        async for item in to_it:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await program.write_line(text.encode("utf-8", "replace"))
            except TimeoutError:
                reasons.append(say("It does not read its input."))
                return on_end()
            except OSError:
                return None  # The program has ended, which ``_read`` reports
    return None
