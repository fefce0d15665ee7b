"""A connection to a server, which is opened again when it breaks as long as it is needed.

A task of its own enters and leaves the session. Calls are made by the tasks of their runs, and end
by themselves when the connection ends. Everybody else tells the task what to do by a ``Signal``.
The states of a program that dies at 0:00, cannot be started for a while, and is called at 0:10::

    0:00  ready       -> failed       LOST; the next attempt comes after 1 s and is waited for
    0:01  failed                      the attempt fails; the next ones come after 2 s, 4 s, 8 s ...
    0:10  failed      -> connecting   RECONNECT by the call, which waits
    0:11  connecting  -> ready
"""

import asyncio
import contextlib
import importlib
import json
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import IntEnum
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from conversations.domain.messages import say
from conversations.domain.text import an_object, dump_json, number_text, one_line, storable
from conversations.domain.tool_calls import READS
from conversations.domain.tool_questions import CANCEL, SAMPLING

from .config import Ask, CallRefused, GrantStore, McpError, ServerConfig, ServerFailed, SignInNeeded

PREFIX = "mcp__"
MAX_NAME_CHARS = 128  # The provider's limit
MAX_OWN_NAME_CHARS = 200
MAX_DESCRIPTION_CHARS = 2000
MAX_SCHEMA_CHARS = 20_000
MAX_TOOLS = 128
MAX_CHECKED_TOOLS = 256  # Checking one may take a tenth of a second
MAX_CACHED_CHECKS = 1024  # Number of schemas
MAX_PROMPTS = 64
MAX_RESOURCES = 200
TASK_SUPPORT = ("optional", "required")
MAX_NOTES = 20

_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")
_PROMPT = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_RESOURCE = re.compile(r"[a-z][a-z0-9+.-]*:[^\s\"<>]{1,2000}", re.IGNORECASE)
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NOT_AT_TOP = ("oneOf", "anyOf", "allOf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOffer:
    """A tool of a server.

    ``name`` is the name for the model, which includes the server. ``as_task`` is true if the server
    can run a call as a task.
    """

    name: str
    own_name: str
    description: str
    input_schema: dict[str, Any]
    effect: str
    as_task: bool = False

    @property
    def basis(self) -> str:
        """The basis of an approval, which changes with the tool's description."""
        return sha256(dump_json(asdict(self)).encode()).hexdigest()


def make_offers(
    config: ServerConfig, listed: Sequence[Mapping[str, Any]]
) -> tuple[tuple[ToolOffer, ...], tuple[str, ...]]:
    """Return the tools of a list that can be offered, by name, and a sentence for each other one.

    This may take some seconds.
    """
    tools: dict[str, Mapping[str, Any]] = {}
    notes: list[str] = []
    skipped = 0
    for tool in listed:
        own_name = tool.get("name")
        problem: str
        if not isinstance(own_name, str) or not own_name or storable(own_name) != own_name:
            problem = say("the name is not valid.")
        elif config.tools is not None and own_name not in config.tools:
            continue
        elif len(tools) == MAX_TOOLS or len(tools) + len(notes) >= MAX_CHECKED_TOOLS:
            skipped += 1
            continue
        elif len(own_name) > MAX_OWN_NAME_CHARS:
            problem = say("the name is too long.")
        elif own_name in tools:
            problem = say("another tool has the same name.")
        else:
            problem = find_problem(tool.get("inputSchema"))
        if problem:
            shown_name = one_line(storable(str(own_name or "")), limit=60)
            shown_name = shown_name or say("A tool without a name")
            notes.append(say("%(tool)s: %(problem)s", tool=shown_name, problem=problem))
        else:
            tools[str(own_name)] = tool
    names = _names_of(config.name, tools)
    offers = [
        _make_offer(config, names[own_name], own_name, tools[own_name])
        for own_name in sorted(tools, key=names.__getitem__)
    ]
    if skipped:
        notes.append(say("%(count)s more: the limit on tools is reached.", count=skipped))
    listed_names = {str(tool.get("name")) for tool in listed}
    if missing := sorted((config.tools or frozenset()) - listed_names):
        named = one_line(", ".join(missing), limit=200)
        notes.append(say("Configured but not offered: %(tools)s", tools=named))
    return tuple(offers), tuple(notes[:MAX_NOTES])


def _names_of(server: str, own_names: Iterable[str]) -> dict[str, str]:
    """Return the names that the model uses, by the server's own names.

    Unsupported characters are replaced. A part of a digest is added to names that would then be
    equal to others, or that are too long.
    """
    plain = {own_name: f"{PREFIX}{server}__{_UNFIT.sub('_', own_name)}" for own_name in own_names}
    uses = Counter(plain.values())
    for own_name, name in plain.items():
        is_own = name == f"{PREFIX}{server}__{own_name}"
        if len(name) > MAX_NAME_CHARS or (uses[name] > 1 and not is_own):
            digest = sha256(f"{server}\0{own_name}".encode()).hexdigest()[:8]
            plain[own_name] = f"{name[: MAX_NAME_CHARS - 9]}_{digest}"
    return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOffer:
    """A prompt of a server, with the names of its arguments in order.

    ``required`` are the arguments that must be given.
    """

    name: str
    says: str
    arguments: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()


def make_prompts(listed: Sequence[Mapping[str, Any]]) -> tuple[PromptOffer, ...]:
    """Return the prompts of a list whose names can be typed, by name."""
    prompts = {}
    for prompt in listed:
        name, arguments = prompt["name"], prompt.get("arguments", [])
        if not _PROMPT.fullmatch(name):
            continue
        names = [one_line(storable(argument["name"]), limit=60) for argument in arguments]
        words = prompt.get("description") or prompt.get("title") or ""
        prompts[name] = PromptOffer(
            name=name,
            says=one_line(storable(words), limit=200),
            arguments=tuple(names),
            required=frozenset(
                argument_name
                for argument_name, argument in zip(names, arguments, strict=True)
                if argument.get("required")
            ),
        )
    return tuple(prompts[name] for name in sorted(prompts)[:MAX_PROMPTS])


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOffer:
    """A resource that a server lists."""

    uri: str
    says: str


def make_resources(listed: Sequence[Mapping[str, Any]]) -> tuple[ResourceOffer, ...]:
    """Return the resources of a list whose addresses can be typed, by address."""
    resources = {}
    for resource in listed:
        uri = resource["uri"]
        if _RESOURCE.fullmatch(uri) and storable(uri) == uri:
            words = (resource.get("title") or resource["name"], resource.get("description"))
            says = " · ".join(text for text in words if text)
            resources[uri] = ResourceOffer(uri=uri, says=one_line(storable(says), limit=200))
    return tuple(resources[uri] for uri in sorted(resources)[:MAX_RESOURCES])


def find_problem(schema: Any) -> str:
    """Return why the provider would reject this schema, or an empty string."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return say("its arguments are not an object.")
    try:
        text = json.dumps(schema, allow_nan=False)
    except (ValueError, RecursionError):
        return say("its schema cannot be serialized as JSON.")
    if len(text) > MAX_SCHEMA_CHARS:
        return say("its schema is too long (%(count)s characters).", count=number_text(len(text)))
    if any(word in schema for word in _NOT_AT_TOP):
        return say("its schema does not define the arguments at the top level.")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        return say("its properties are not an object.")
    if unfit := [name for name in properties if not _PROPERTY.fullmatch(name)]:
        name = repr(one_line(storable(unfit[0]), limit=60))
        return say("the model cannot use the argument %(name)s.", name=name)
    return check_schema(text)


@lru_cache(MAX_CACHED_CHECKS)
def check_schema(text: str) -> str:
    """Return why the text is not a valid JSON Schema, or an empty string.

    The draft is the one that the provider requires. Nothing in the schema is executed.
    """
    from jsonschema import Draft202012Validator, SchemaError

    try:
        schema = json.loads(text)
        schema.pop("$schema", None)
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        reason = one_line(storable(error.message), limit=120)
        return say("its schema is not valid: %(reason)s", reason=reason)
    except RecursionError:
        return say("its schema is nested too deeply.")
    return ""


def _make_offer(config: ServerConfig, name: str, own: str, tool: Mapping[str, Any]) -> ToolOffer:
    hints = an_object(tool.get("annotations"))
    execution = tool.get("execution")
    is_believed = config.trust_hints and hints.get("readOnlyHint") is True
    words = tool.get("description")
    text = storable(words).strip() if isinstance(words, str) else ""
    if len(text) > MAX_DESCRIPTION_CHARS:
        text = text[: MAX_DESCRIPTION_CHARS - 1] + "…"
    return ToolOffer(
        name=name,
        own_name=own,
        description=(
            f"The tool {own!r} of the tool server {config.name!r}, in the server's own words: "
            f"{text or '(none)'}"
        ),
        input_schema=dict(tool["inputSchema"]),
        effect=READS if is_believed else config.effect,
        as_task=isinstance(execution, dict) and execution.get("taskSupport") in TASK_SUPPORT,
    )


if TYPE_CHECKING:
    from .session import ToolServerSession

logger = logging.getLogger(__name__)

CONNECTING, READY, FAILED, OFF = say("connecting"), say("ready"), say("failed"), say("off")

# Between a server's notice that its list has changed and reading the list.
RELIST_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTiming:
    """The times of a connection in seconds.

    ``wait`` is how long a model call waits for a server that has just begun to connect, or whose
    connection has just been lost. ``first_wait`` and ``longest_wait`` are the waits between two
    attempts. After a connection that lasted for ``steady`` seconds, the first wait is used again.
    ``idle`` is how long an unused program keeps running. ``look`` is the interval at which the list
    of a server with an address is read, which also shows whether the server is still there.
    """

    wait: float = 2.0
    connect: float = 30.0
    first_wait: float = 1.0
    longest_wait: float = 60.0
    steady: float = 60.0
    idle: float = 900.0
    look: float = 60.0
    close: float = 8.0


class Signal(IntEnum):
    """What the task that owns the session has to do next. Only the strongest signal counts."""

    NONE = 0
    RELIST = 1  # Read the server's lists
    LOST = 2  # The session has broken: end it, and connect again after a wait
    RECONNECT = 3  # End the session or the attempt, and connect again at once
    CLOSE = 4  # End for good


async def ask_nobody(params: Mapping[str, Any]) -> dict[str, Any]:
    return {"action": CANCEL}


async def load_session() -> Any:
    """Return the module that uses the SDK."""
    return await asyncio.to_thread(importlib.import_module, "conversations.agent.mcp.session")


class OpenCall:
    """A call that waits for its result. Its timeout is suspended while a person is asked.

    With a timeout of 60 s, a call may take 50 s, ask a person for an hour, and then take 60 s more.
    """

    def __init__(self, config: ServerConfig, ask: Ask) -> None:
        self.limit = asyncio.timeout(config.timeout_seconds)
        self._config = config
        self._ask = ask
        self._open_questions = 0
        self._samples = 0  # All that the call has asked for

    async def ask(self, params: Mapping[str, Any]) -> dict[str, Any]:
        sampling = self._config.sampling
        if sampling is not None and params.get("mode") == SAMPLING:
            self._samples += 1
            if self._samples > sampling.max_requests:
                words = f"A call may ask the model {sampling.max_requests} times."
                return {"action": CANCEL, "reason": words}
        self._open_questions += 1
        self.limit.reschedule(None)
        try:
            return await self._ask(params)
        finally:
            self._open_questions -= 1
            if not self._open_questions:
                now = asyncio.get_running_loop().time()
                # A question may outlive its call, whose timeout can then not be changed.
                with contextlib.suppress(RuntimeError):
                    self.limit.reschedule(now + self._config.timeout_seconds)


class ToolServerConnection:
    """A connection to one server.

    ``root`` is the folder of the workspace to which the server belongs, or None if the server is
    shared. ``version`` counts the lists of tools. ``left_out`` has sentences about the tools of the
    last list that are not offered.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        root: Path | None,
        timing: ConnectionTiming,
        grants: GrantStore | None = None,
    ) -> None:
        self.config = config
        self.grants = grants
        self.root = root
        self.state: str = OFF
        self.reason = ""
        self.title = ""
        self.since = datetime.now(UTC)
        self.offers: tuple[ToolOffer, ...] = ()
        self.left_out: tuple[str, ...] = ()
        self.prompts: tuple[PromptOffer, ...] = ()
        self.resources: tuple[ResourceOffer, ...] = ()
        self.version = 0
        self.needs_sign_in = False
        self._refused: Any = None  # The tokens with which a sign-in was needed
        self.open_calls: list[OpenCall] = []
        self.last_used = monotonic()
        self._timing = timing
        self._session: ToolServerSession | None = None
        self._limit: asyncio.Timeout | None = None
        self._task: asyncio.Task[None] | None = None
        self._signal = Signal.NONE
        self._signalled = asyncio.Event()
        self._changed = asyncio.Event()  # Replaced when the state changes
        # Whether the server is expected to be connected soon, and until when a model call waits
        self._is_awaited = False
        self._patience = 0.0

    def use(self) -> None:
        """Start connecting if there is no connection, unless it was closed."""
        self.last_used = monotonic()
        if self._signal != Signal.CLOSE and (self._task is None or self._task.done()):
            self._change(CONNECTING)
            self._task = asyncio.create_task(self._run())

    def connect_again(self) -> None:
        """Connect at once. An existing connection is replaced."""
        if self._signal == Signal.CLOSE:
            return
        self.use()
        if self.state != CONNECTING:
            self._change(CONNECTING)
        self._send(Signal.RECONNECT)

    async def close(self) -> None:
        """Close the connection for good and end a program."""
        self._send(Signal.CLOSE)
        if self._task is None:
            return
        _, stuck = await asyncio.wait({self._task}, timeout=self._timing.close)
        for task in stuck:
            task.cancel()
            await asyncio.wait({task}, timeout=self._timing.close)

    async def wait_connected(self, *, seconds: float | None = None) -> None:
        """Wait until the server is connected, or until that is not expected soon.

        ``seconds`` limits the wait. By default the limit is the rest of the time for which a new
        connection is waited for.
        """
        limit = self._patience - monotonic() if seconds is None else seconds
        if limit <= 0:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while self._is_awaited:
                    await self._changed.wait()

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        report: Callable[[str], None],
        ask: Ask = ask_nobody,
        basis: str = "",
    ) -> dict[str, Any]:
        """Call a tool and return its result.

        The timeout is suspended while a person is asked (``ask``). If there is no connection,
        another attempt is made at once. If ``basis`` is given, the offer must still have this
        basis. Raise McpError. If the call is cancelled, the server is notified.
        """
        session = await self._wait_for_session()
        offer = next((offer for offer in self.offers if offer.own_name == name), None)
        if basis and (offer is None or offer.basis != basis):
            raise CallRefused(
                "This is no longer the tool that was approved: the server has changed its "
                "description."
            )
        call = OpenCall(self.config, ask)
        self.open_calls.append(call)
        try:
            async with call.limit:
                if session.runs_tasks and offer is not None and offer.as_task:
                    return await self._call_as_task(session, name, arguments, report=report)
                return await session.call_tool(name, arguments, report=report, ask=call.ask)
        except TimeoutError:
            seconds = f"{self.config.timeout_seconds:g}"
            raise CallRefused(
                say("No answer within %(seconds)s s; the call was cancelled.", seconds=seconds)
            ) from None
        except ServerFailed as error:
            raise await self._reset(session, error) from error
        finally:
            self.open_calls.remove(call)
            self.last_used = monotonic()

    async def _wait_for_session(self) -> "ToolServerSession":
        self.use()
        if self._session is None:
            reason = self.reason
            if self.state == FAILED and not self._is_awaited:
                self.connect_again()
            await self.wait_connected(seconds=self._timing.connect)
            if self._session is None:
                raise ServerFailed(self.reason or reason or say("The server is not connected."))
        return self._session

    async def _reset(self, session: "ToolServerSession", error: ServerFailed) -> ServerFailed:
        """Have the connection made again, and return an error with the reason.

        The reason is the one that the owning task knows.
        """
        if self._session is session:
            self._send(Signal.LOST)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.close):
                while self._session in (session, None) and self.state == READY:
                    await self._changed.wait()
        return ServerFailed(self.reason or error.message)

    async def _call_as_task(
        self,
        session: "ToolServerSession",
        name: str,
        arguments: dict[str, Any],
        *,
        report: Callable[[str], None],
    ) -> dict[str, Any]:
        """Return the result of a call that continues at the server while the connection is lost."""
        task = await session.begin_task(name, arguments)
        try:
            while True:
                try:
                    return await session.finish_task(task, report=report)
                except ServerFailed:
                    if self.config.is_program:  # The program's tasks have ended with it
                        raise
                    session = await self._connect_anew(session)
        except asyncio.CancelledError:
            with contextlib.suppress(McpError, TimeoutError):
                async with asyncio.timeout(self._timing.close):
                    await session.cancel_task(task)
            raise

    async def _connect_anew(self, lost: "ToolServerSession") -> "ToolServerSession":
        """Return another session, however long that takes."""
        while self._session is None or self._session is lost:
            self.connect_again()
            await self.wait_connected(seconds=self._timing.connect)
            if self._session is None:
                await asyncio.sleep(self._timing.first_wait)
        return self._session

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        """Return the messages of a prompt. Raise McpError."""
        return await self._ask_session(lambda session: session.get_prompt(name, arguments))

    async def read_resource(self, uri: str) -> list[dict[str, Any]]:
        """Return the contents of a resource. Raise McpError."""
        return await self._ask_session(lambda session: session.read_resource(uri))

    async def _ask_session[T](self, ask: "Callable[[ToolServerSession], Awaitable[T]]") -> T:
        self.last_used = monotonic()
        session = self._session
        if session is None:
            raise ServerFailed(self.reason or say("The server is not connected."))
        try:
            async with asyncio.timeout(self.config.timeout_seconds):
                return await ask(session)
        except ServerFailed as error:
            raise await self._reset(session, error) from error
        except TimeoutError:
            seconds = f"{self.config.timeout_seconds:g}"
            raise CallRefused(say("No answer within %(seconds)s s.", seconds=seconds)) from None

    async def _answer(self, params: Mapping[str, Any]) -> dict[str, Any]:
        # Older servers do not say to which call a question belongs. If several calls are open, the
        # question could concern any of them, and they may be of different people, so it is
        # cancelled.
        ask = self.open_calls[0].ask if len(self.open_calls) == 1 else ask_nobody
        return await ask(params)

    def _send(self, signal: Signal) -> None:
        self._signal = max(self._signal, signal)
        self._signalled.set()
        if signal < Signal.RECONNECT or self._limit is None or self._session is not None:
            return
        if not self._limit.expired():  # Else it is ending the attempt already
            self._limit.reschedule(asyncio.get_running_loop().time())

    # The task that owns the session.

    async def _run(self) -> None:
        wait = self._timing.first_wait
        while self._signal != Signal.CLOSE:
            self._signal = Signal.NONE
            began = monotonic()
            error = await self._connect()
            self.needs_sign_in = isinstance(error, SignInNeeded)
            if self._signal == Signal.RECONNECT or monotonic() - began > self._timing.steady:
                wait = self._timing.first_wait
            if self._signal >= Signal.RECONNECT:
                continue
            is_recovering = self.state == READY and wait == self._timing.first_wait
            self._change(FAILED, error.message, is_awaited=is_recovering)
            if self.needs_sign_in:
                with contextlib.suppress(Exception):  # The database may be unavailable
                    self._refused = await self._read_tokens()
            fields = self._fields() | {"reason": error.message}
            logger.warning("mcp_failed", extra={"fields": fields})
            await self._wait_for(Signal.RECONNECT, wait)
            wait = min(2 * wait, self._timing.longest_wait)
        self._change(OFF)

    async def _wait_for(self, least: Signal, seconds: float | None) -> None:
        """Wait until there is a signal that is at least as strong, or until the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._signal < least:
                    self._signalled.clear()
                    await self._signalled.wait()

    async def _connect(self) -> McpError:
        """Connect and serve the session until it ends. Return the reason why it ended."""
        try:
            async with asyncio.timeout(self._timing.connect) as self._limit:
                await self._serve(self._limit)
        except TimeoutError:
            seconds = f"{self._timing.connect:g}"
            return ServerFailed(say("It did not respond within %(seconds)s s.", seconds=seconds))
        except McpError as error:
            return error
        except Exception as error:
            logger.exception("mcp_connection_failed")
            reason = type(error).__name__
            return ServerFailed(say("The connection failed (%(reason)s).", reason=reason))
        finally:
            self._session = self._limit = None
        return ServerFailed(say("The connection was closed."))

    async def _serve(self, limit: asyncio.Timeout) -> None:
        sdk = await load_session()
        on_change = partial(self._send, Signal.RELIST)
        opened = sdk.open_session(
            self.config,
            root=self.root,
            on_change=on_change,
            on_end=partial(self._send, Signal.LOST),
            on_question=self._answer,
            grants=self.grants,
        )
        async with opened as session:
            await self._refresh_lists(session)
            limit.reschedule(None)
            if self._signal == Signal.CLOSE:
                return
            self._session = session
            self.title = session.title
            await self._become_ready()
            logger.info("mcp_connected", extra={"fields": self._fields()})
            listening = asyncio.create_task(session.listen(on_change))
            try:
                await self._watch(session)
            finally:
                self._session = None
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def _watch(self, session: "ToolServerSession") -> None:
        """Read the server's lists when they change and at intervals, until a signal to end."""
        interval = None if self.config.is_program else self._timing.look
        while True:
            await self._wait_for(Signal.RELIST, interval)
            if self._signal == Signal.LOST:
                raise ServerFailed(say("The connection was closed."))
            if self._signal > Signal.LOST:
                return
            if self._signal == Signal.NONE and self.open_calls:
                continue  # A server that is busy with a call may not answer
            await asyncio.sleep(RELIST_PAUSE_SECONDS)
            if self._signal > Signal.RELIST:
                continue
            self._signal = Signal.NONE
            try:
                async with asyncio.timeout(self._timing.connect):
                    await self._refresh_lists(session)
            except TimeoutError:
                # Change the state now, because such a server also takes long to close the
                # connection.
                self._change(FAILED, say("It did not respond in time."))
                raise
            await self._become_ready()

    async def _become_ready(self) -> None:
        # A server may list its tools without a sign-in, or need more scopes for some of them, and
        # then requires a sign-in only at a call. A connection with the same tokens therefore still
        # needs one.
        if self.needs_sign_in:
            self.needs_sign_in = await self._read_tokens() == self._refused
        self._change(READY, SignInNeeded().message if self.needs_sign_in else "")

    async def _read_tokens(self) -> Any:
        return (await self.grants.read()).get("tokens") if self.grants is not None else None

    async def _refresh_lists(self, session: "ToolServerSession") -> None:
        with contextlib.suppress(CallRefused):  # The connection works without prompts and resources
            self.prompts = make_prompts(await session.list_prompts())
        with contextlib.suppress(CallRefused):
            self.resources = make_resources(await session.list_resources())
        try:
            listed = await session.list_tools()
        except CallRefused as error:
            raise ServerFailed(
                say("It returned no list of tools: %(reason)s", reason=error.message)
            ) from error
        offers_and_notes = await asyncio.to_thread(make_offers, self.config, listed)
        if offers_and_notes != (self.offers, self.left_out) or not self.version:
            self.offers, self.left_out = offers_and_notes
            self.version += 1

    def _fields(self) -> dict[str, Any]:
        return {
            "server": self.config.name,
            "transport": self.config.transport,
            "tools": len(self.offers),
        }

    def _change(self, state: str, reason: str = "", *, is_awaited: bool = False) -> None:
        if state != self.state:
            self.since = datetime.now(UTC)
        self.state, self.reason = state, reason
        self._is_awaited = is_awaited or state == CONNECTING
        if self._is_awaited:
            self._patience = monotonic() + self._timing.wait
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
