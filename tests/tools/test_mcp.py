"""Connections to tool servers, working and faulty, and the tools that they offer."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from conversations.agent.mcp.config import CallRefused, McpConfig, ServerFailed
from conversations.agent.mcp.connection import (
    MAX_NOTES,
    MAX_OWN_NAME_CHARS,
    ConnectionTiming,
    OpenCall,
    ToolServerConnection,
    check_schema,
    make_offers,
)
from conversations.agent.mcp.program import NOISE_LINES_PER_PAUSE, ServerProcess
from conversations.agent.mcp.servers import ServerState, ToolServers, make_tool, split_words
from conversations.agent.sandbox.support import find_support
from conversations.agent.tools.registry import TOOLS, find_tool, offered_tools
from conversations.domain.errors import Rejected, Unavailable
from conversations.domain.tool_calls import CallPlan, ToolScope
from loomweb.settings import BASE_DIR
from tests.mcp_servers.running import HERE, HttpServer, config, is_running, plain, until

PYTHON = str(Path(sys.executable).resolve())
"""The resolved path, because a sandbox does not contain the link in a virtual environment."""

QUICK = ConnectionTiming(wait=60, connect=60, first_wait=0.05, longest_wait=0.2)
"""Long timeouts that only a failing test reaches, and short pauses between attempts."""

type Open = Callable[..., Awaitable[ToolServers]]


@pytest.fixture
async def open_servers(tmp_path: Path) -> AsyncIterator[Open]:
    """Return a function that starts servers for a workspace ``garden`` in the temporary folder."""
    opened: list[ToolServers] = []

    async def start(made: McpConfig, root: Path = tmp_path, **timing: float) -> ToolServers:
        servers = ToolServers(made, replace(QUICK, **timing))
        opened.append(servers)
        await servers.start()
        await servers.prepare("garden", root)
        return servers

    yield start
    for servers in opened:
        await servers.stop()


def arguments_of(pid: int) -> str:
    """Return the arguments of a process, which every user of the machine can see."""
    return Path(f"/proc/{pid}/cmdline").read_text()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def state_of(servers: ToolServers, name: str = "plain") -> ServerState:
    return next(state for state in servers.describe("garden") if state.name == name)


def connection_of(servers: ToolServers, name: str = "plain") -> ToolServerConnection:
    return next(c for key, c in servers._connections.items() if key[0] == name)


async def call(servers: ToolServers, tool: str, server: str = "plain", **arguments: Any) -> str:
    connection = connection_of(servers, server)
    result = await connection.call(tool, arguments, report=lambda text: None)
    return str(result["content"][0]["text"])


async def test_server_tools_are_listed_in_order_after_own_tools(open_servers: Open) -> None:
    servers = await open_servers(config(plain=plain(), b2=plain(tools=["wait", "spade"])))
    tools = servers.tools_of("garden")
    assert list(tools) == [
        "mcp__b2__wait",
        *(
            f"mcp__plain__{name}"
            for name in ("deaf", "die", "echo", "environment", "touch", "wait")
        ),
    ]
    assert servers.tools_of("garden") == tools
    assert state_of(servers, "b2").left_out == ("Configured but not offered: spade",)
    assert state_of(servers).title == "plain 1"
    scope = ToolScope(workspace="garden", policy="ask")
    names = [tool["name"] for tool in json.loads(offered_tools(scope, tools))]
    assert names[-len(tools) :] == list(tools)
    assert offered_tools(scope, tools) == offered_tools(scope, servers.tools_of("garden"))
    reading = ToolScope(workspace="garden", policy="read_only")
    assert "mcp__" not in offered_tools(reading, tools)
    assert find_tool("mcp__plain__echo", reading, tools) is None
    assert "in the server's own words: It does echo well." in tools["mcp__plain__echo"].description


async def test_hints_of_a_server_are_trusted_only_if_configured(open_servers: Open) -> None:
    servers = await open_servers(
        config(doubted=plain(), trusted=plain(trust_hints=True), harmless=plain(effect="reads"))
    )
    effects = {name: tool.effect for name, tool in servers.tools_of("garden").items()}
    assert (effects["mcp__doubted__echo"], effects["mcp__doubted__wait"]) == ("changes",) * 2
    assert (effects["mcp__trusted__echo"], effects["mcp__trusted__wait"]) == ("reads", "changes")
    assert (effects["mcp__harmless__echo"], effects["mcp__harmless__wait"]) == ("reads",) * 2


async def test_unsupported_tools_are_omitted_and_reported(open_servers: Open) -> None:
    servers = await open_servers(config(plain=plain("odd")))
    names = list(servers.tools_of("garden"))
    assert len([name for name in names if name.startswith("mcp__plain__files_read_me")]) == 3
    assert "mcp__plain__files_read_me" in names
    assert all(len(name) <= 128 and name.isascii() for name in names)
    said = dict(note.split(": ", 1) for note in state_of(servers).left_out)
    assert set(said) >= {"large", "choice", "bad_type", "bad_key", "echo"}
    assert said["bad_key"] == "the model cannot use the argument 'a b'."
    again = await open_servers(config(plain=plain("odd")))
    assert list(again.tools_of("garden")) == names


def listed(names: Iterable[str], kind: str = "string") -> list[dict[str, Any]]:
    return [
        {"name": name, "inputSchema": {"type": "object", "properties": {name: {"type": kind}}}}
        for name in names
    ]


def test_number_of_checked_tools_is_limited() -> None:
    server = config(plain=plain()).servers["plain"]
    tools = listed(f"t{number}" for number in reversed(range(300)))
    tools += listed(["unchecked"], "soup")
    offers, notes = make_offers(server, tools)
    assert notes == ("173 more: the limit on tools is reached.",)
    assert {offer.own_name for offer in offers} == {f"t{number}" for number in range(172, 300)}
    unfit = listed((f"u{number}" for number in range(300)), "soup")
    offers, notes = make_offers(server, unfit + tools)
    assert (offers, len(notes)) == ((), MAX_NOTES)
    checked = check_schema.cache_info().misses
    make_offers(server, unfit + tools)
    assert check_schema.cache_info().misses == checked


async def test_approval_shows_the_full_name_of_the_tool() -> None:
    server = config(plain=plain()).servers["plain"]
    name = "delete_".ljust(MAX_OWN_NAME_CHARS, "x")
    [offer], _ = make_offers(server, [{"name": name, "inputSchema": {"type": "object"}}])
    tool = make_tool(server, offer, lambda _: pytest.fail("nothing is called"))
    assert tool.plan is not None
    context: Any = SimpleNamespace(basis="")
    plan = await tool.plan(context, {})
    assert isinstance(plan, CallPlan)
    assert plan.summary == f"{name} of plain"


async def test_malformed_tool_does_not_affect_others(open_servers: Open) -> None:
    servers = await open_servers(config(plain=plain("malformed", trust_hints=True)))
    assert state_of(servers).state == "ready"
    assert set(state_of(servers).left_out) == {
        "A tool without a name: the name is not valid.",
        "bare: its arguments are not an object.",
        "true: its arguments are not an object.",
    }
    tools = servers.tools_of("garden")
    odd = [tools[f"mcp__plain__{name}"] for name in ("hinted", "numbered", "pictured")]
    assert [tool.effect for tool in odd] == ["changes"] * 3
    assert odd[1].description.endswith("(none)")
    assert await call(servers, "pictured", a=1) == '{"a": 1}'


async def test_server_program_sees_its_folder_and_no_secrets(
    open_servers: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "the-key")
    monkeypatch.setenv("DATABASE_URL", "postgres://…")
    servers = await open_servers(config(plain=plain(env={"MINE": "yes"})))
    seen = json.loads(await call(servers, "environment"))
    assert seen["cwd"] == str(tmp_path)
    assert seen["env"]["MINE"] == "yes"
    assert seen["env"]["PATH"] == os.environ["PATH"]
    assert not {"ANTHROPIC_API_KEY", "DATABASE_URL", "LOOM_SECRET_KEY"} & seen["env"].keys()
    assert "MINE" not in arguments_of(seen["pid"]) + arguments_of(parent_of(seen["pid"]))


@pytest.mark.skipif(not find_support().bwrap, reason="NO SANDBOX HERE")
async def test_sandboxed_server_program_sees_only_its_folder(
    open_servers: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr(settings.LOOM, "sandbox_paths", [HERE])
    (tmp_path / "secret").mkdir()
    (tmp_path / "garden").mkdir()
    server = plain("child", sandbox=True, env={"MINE": "yes"})
    server["command"] = PYTHON
    servers = await open_servers(config(plain=server), tmp_path / "garden")
    seen = json.loads(await call(servers, "environment"))
    assert (seen["cwd"], seen["env"]["MINE"]) == (str(tmp_path / "garden"), "yes")
    assert seen["env"]["HOME"] != os.environ["HOME"]
    assert await call(servers, "list", path=str(tmp_path)) == "garden"
    await call(servers, "touch", name="bean.txt")
    assert (tmp_path / "garden/bean.txt").exists()
    with pytest.raises(ServerFailed, match="It ended with exit code 7"):
        await call(servers, "die")


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("silent", "It did not respond within 1 s."),
        (
            "missing_library",
            "It ended with exit code 1. Last output: ImportError: no library of that name",
        ),
        (
            "strange_version",
            "The connection failed (Unsupported protocol version from the server: 1900-01-01).",
        ),
    ],
)
async def test_server_that_does_not_start_is_failed(
    open_servers: Open, behaviour: str, reason: str
) -> None:
    connect = 1 if behaviour == "silent" else 60
    servers = await open_servers(config(plain=plain(behaviour), good=plain()), connect=connect)
    await until(lambda: state_of(servers).is_failed)
    assert state_of(servers).reason == reason
    await until(lambda: state_of(servers, "good").state == "ready")
    assert [name[:11] for name in servers.tools_of("garden")] == ["mcp__good__"] * 6
    assert servers.explain("mcp__plain__echo", "garden") == (
        f"The tool server plain is not answering. {reason}"
    )
    with pytest.raises(ServerFailed, match=reason[:20]):
        await call(servers, "echo")


async def test_server_with_a_missing_program_is_failed(open_servers: Open) -> None:
    servers = await open_servers(config(plain={"command": "/no/such/program"}))
    await until(lambda: state_of(servers).is_failed)
    assert "/no/such/program: No such file or directory" in state_of(servers).reason


async def test_noise_between_messages_is_ignored(open_servers: Open) -> None:
    servers = await open_servers(config(plain=plain("babble", "complain")))
    assert await call(servers, "echo", a=1) == '{"a": 1}'


async def test_flood_of_noise_does_not_block_the_event_loop(
    open_servers: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = most = 0
    read = ServerProcess.read_line

    async def count(program: ServerProcess) -> bytes | None:
        nonlocal lines, most
        line = await read(program)
        lines += 1
        most = max(most, lines)
        return line

    async def turn() -> None:
        nonlocal lines
        while True:
            await asyncio.sleep(0)
            lines = 0

    monkeypatch.setattr(ServerProcess, "read_line", count)
    turning = asyncio.create_task(turn())
    servers = await open_servers(config(plain=plain("flood")))
    assert await call(servers, "echo", a=1) == '{"a": 1}'
    turning.cancel()
    assert most <= 2 * NOISE_LINES_PER_PAUSE


async def test_unreadable_message_ends_the_connection(open_servers: Open) -> None:
    servers = await open_servers(config(plain=plain("odd", "abyss")))
    await until(lambda: state_of(servers).is_failed)
    assert state_of(servers).reason == "It sent an unreadable message."


async def test_error_message_of_a_call_is_reported_for_any_code(open_servers: Open) -> None:
    servers = await open_servers(config(plain=plain()))
    for code in (-32603, -32000):  # the SDK also uses the second code for a lost connection
        with pytest.raises(CallRefused, match=r"^boom$"):
            await call(servers, "echo", error={"code": code, "message": "boom"})
    assert state_of(servers).state == "ready"


async def test_lone_surrogate_in_a_result_is_replaced(open_servers: Open) -> None:
    servers = await open_servers(config(plain=plain()))
    assert await call(servers, "echo", cut=True) == "half a smile: \ufffd"


@pytest.mark.parametrize("given", ['"a \\ud83d"', b'"a \\uD83D"', b'"a \xed"'])
def test_lone_surrogate_in_a_response_is_replaced(given: Any) -> None:
    from mcp.client import streamable_http

    from conversations.agent.mcp import session  # noqa: F401

    frame: tuple[Any, Any] = ('{"jsonrpc":"2.0","id":1,"result":{"text":', "}}")
    before, after = frame if isinstance(given, str) else (part.encode() for part in frame)
    adapter: Any = vars(streamable_http)["jsonrpc_message_adapter"]
    read = adapter.validate_json(before + given + after, by_name=False)
    assert read.result == {"text": "a \ufffd"}
    with pytest.raises(ValidationError):  # the SDK expects this error
        adapter.validate_json(given + given, by_name=False)


async def test_message_with_too_many_values_ends_the_connection(
    open_servers: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsed values take many times the bytes of the message, and parsing blocks the server."""
    monkeypatch.setattr("conversations.agent.mcp.session.MAX_JSON_VALUES", 1_000)
    servers = await open_servers(config(plain=plain()))
    assert await call(servers, "echo", a="[" * 1_000)
    with pytest.raises(ServerFailed, match="too many values"):
        await call(servers, "echo", structured=[[]] * 1_000)


async def test_model_call_waits_only_once_for_a_connecting_server(
    open_servers: Open, tmp_path: Path
) -> None:
    servers = await open_servers(config(plain=plain("silent")), wait=0.2)
    connection = connection_of(servers)
    assert connection.state == "connecting"
    rounds = 0
    while rounds < 50:
        await servers.prepare("garden", tmp_path)
        rounds += 1
    assert connection.state == "connecting"


async def test_prompts_are_filled_with_the_words_that_follow(
    open_servers: Open, tmp_path: Path
) -> None:
    with HttpServer("session_server.py", FOLDER=str(tmp_path)) as server:
        servers = await open_servers(config(web={"url": server.url}, plain=plain()))
        [(name, offer)] = servers.prompts_of("garden").items()
        assert (name, offer.says, offer.arguments) == ("web:plan", "Plan a bed.", ("bed", "season"))

        async def write(words: str) -> str:
            return await servers.write_prompt("garden", tmp_path, name, words)

        assert await write("peas") == "Plan the bed peas for spring."
        assert await write('"sweet peas" late summer') == "Plan the bed sweet peas for late summer."
        with pytest.raises(Rejected, match="needs: bed"):
            await write(" ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('bed plant the "sweet peas"', ["bed", 'plant the "sweet peas"']),
        ('bed "sweet" and "sour"', ["bed", '"sweet" and "sour"']),
        ('"south bed" "sweet peas"', ["south bed", "sweet peas"]),
        ("bed", ["bed"]),
    ],
)
def test_quotes_are_removed_only_around_a_whole_argument(text: str, words: list[str]) -> None:
    assert split_words(text, 2) == words


async def test_connection_can_be_closed_while_it_is_timing_out(tmp_path: Path) -> None:
    made = config(plain=plain("silent", "stubborn"))
    timing = replace(QUICK, connect=0.3)
    connection = ToolServerConnection(made.servers["plain"], root=tmp_path, timing=timing)
    connection.use()
    await until(lambda: connection._limit is not None and connection._limit.expired())
    await connection.close()
    assert connection.state == "off"


async def test_call_does_not_wait_for_the_next_attempt(open_servers: Open, tmp_path: Path) -> None:
    """The server is reachable again after a long time, before the next attempt is due."""
    with HttpServer("session_server.py", FOLDER=str(tmp_path)) as server:
        port = server.port
        made = config(web={"url": server.url})
        server.stop()
        servers = await open_servers(made, first_wait=600, longest_wait=600, wait=5)
        assert state_of(servers, "web").is_failed
        server.start(port=port)
        assert await call(servers, "echo", "web") == "hello"
        assert state_of(servers, "web").state == "ready"


async def test_server_that_dies_in_a_call_is_failed_and_then_ready_again(
    open_servers: Open, tmp_path: Path
) -> None:
    servers = await open_servers(config(plain=plain()), first_wait=0.3)
    with pytest.raises(ServerFailed) as caught:
        await call(servers, "die")
    assert str(caught.value) == "It ended with exit code 7. Last output: it was too much"
    assert state_of(servers).is_failed
    tools = await servers.prepare("garden", tmp_path)  # waits for the server
    assert "mcp__plain__echo" in tools
    assert await call(servers, "echo") == "{}"


async def test_cancelling_a_call_keeps_the_connection_and_other_calls(
    open_servers: Open, tmp_path: Path
) -> None:
    servers = await open_servers(config(plain=plain()))
    waiting = asyncio.create_task(call(servers, "wait"))
    await until(lambda: connection_of(servers).open_calls)
    other = asyncio.create_task(call(servers, "wait"))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await until((tmp_path / "cancelled").exists)
    (tmp_path / "go").touch()
    assert await other == "{}"
    assert (waiting.cancelled(), state_of(servers).state) == (True, "ready")


async def test_call_without_an_answer_times_out(open_servers: Open) -> None:
    servers = await open_servers(config(plain=plain(timeout_seconds=1)))
    with pytest.raises(CallRefused, match="No answer within 1 s; the call was cancelled"):
        await call(servers, "deaf")
    assert await call(servers, "echo") == "{}"


async def test_timeout_of_a_call_begins_again_after_its_last_question() -> None:
    answers = asyncio.Event()

    async def ask(params: Mapping[str, Any]) -> dict[str, Any]:
        await answers.wait()
        return {"action": "accept"}

    call = OpenCall(config(plain=plain(timeout_seconds=1)).servers["plain"], ask)
    async with call.limit:
        questions = [asyncio.create_task(call.ask({})) for _ in range(2)]
        await asyncio.sleep(0)
        assert call.limit.when() is None
        answers.set()
        await asyncio.gather(*questions)
        assert call.limit.when() is not None
        answers.clear()
        late = asyncio.create_task(call.ask({}))
        await asyncio.sleep(0)
    answers.set()
    assert await late == {"action": "accept"}


async def test_new_tool_of_a_server_is_noticed(open_servers: Open) -> None:
    servers = await open_servers(config(plain=plain()))
    before = len(servers.tools_of("garden"))
    await call(servers, "echo", grow=True)
    await until(lambda: len(servers.tools_of("garden")) == before + 1)


async def test_unused_programs_are_ended_and_started_when_needed(
    open_servers: Open, tmp_path: Path
) -> None:
    servers = await open_servers(config(plain=plain()))
    pid = json.loads(await call(servers, "environment"))["pid"]
    servers.close_unused()
    assert state_of(servers).state == "ready"
    connection_of(servers).last_used -= QUICK.idle + 1
    servers.close_unused()
    await until(lambda: state_of(servers).state == "off")
    await until(lambda: not is_running(pid))
    assert state_of(servers).reason == "Starts when it is needed."
    assert "mcp__plain__echo" in await servers.prepare("garden", tmp_path)


async def test_stopped_connection_does_not_start_again(open_servers: Open, tmp_path: Path) -> None:
    servers = await open_servers(config(plain=plain()))
    connection = connection_of(servers)
    await servers.stop()
    connection.use()
    connection.connect_again()
    with pytest.raises(ServerFailed, match="The server is not connected"):
        await connection.call("touch", {}, report=print)
    with pytest.raises(Unavailable, match="The server is stopping"):
        await servers.read_resource("garden", tmp_path, "plain:beds://south")
    assert connection.state == "off"
    assert not (tmp_path / "touched").exists()


async def test_http_server_is_shared_and_reconnected(open_servers: Open, tmp_path: Path) -> None:
    with HttpServer() as http, HttpServer("session_server.py", FOLDER=str(tmp_path)) as later:
        server = {"url": http.url, "headers": {"X-Key": "k"}, "timeout_seconds": 5}
        servers = await open_servers(config(web=server), look=0.1)
        assert await call(servers, "echo", "web", text="hi") == f"hi from {Path.cwd().name}"
        assert "mcp__web__echo" in servers.tools_of("shed")
        waiting = asyncio.create_task(call(servers, "steps", "web", count=1))
        await until(lambda: connection_of(servers, "web").open_calls)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert await call(servers, "echo", "web", text="still") == f"still from {Path.cwd().name}"
        await call(servers, "grow", "web")
        await until(lambda: "mcp__web__echo_too" in servers.tools_of("garden"))
        with pytest.raises(ServerFailed):
            await call(servers, "die", "web")
        await until(lambda: state_of(servers, "web").is_failed)
        assert "cannot be reached" in state_of(servers, "web").reason
        later.start(port=http.port)  # another server in its place, which starts faster
        await until(lambda: state_of(servers, "web").state == "ready")
        tools = servers.tools_of("shed")
        assert list(tools) == ["mcp__web__echo"]
        later.stop()  # the loss is noticed without a call
        await until(lambda: state_of(servers, "web").is_failed)
        later.start(port=http.port)
        await until(lambda: state_of(servers, "web").state == "ready")
        again = servers.tools_of("garden")
        assert [again[name].as_json for name in again] == [tools[name].as_json for name in tools]


@pytest.mark.parametrize(
    "ask",
    [
        lambda connection: connection.call("echo", {}, report=print),
        lambda connection: connection.get_prompt("plan", {}),
        lambda connection: connection.read_resource("beds://south"),
    ],
    ids=["tool", "prompt", "resource"],
)
async def test_connection_is_renewed_if_the_server_forgot_its_session(
    open_servers: Open, tmp_path: Path, ask: Callable[[ToolServerConnection], Awaitable[Any]]
) -> None:
    with HttpServer("session_server.py", FOLDER=str(tmp_path)) as server:
        servers = await open_servers(config(web={"url": server.url}))
        connection = connection_of(servers, "web")
        server.start(port=server.port)
        with pytest.raises(ServerFailed, match="The connection was closed"):
            await ask(connection)
        assert state_of(servers, "web").is_failed
        await connection.wait_connected()
        assert await call(servers, "echo", "web") == "hello"


async def test_stream_without_a_result_is_a_lost_connection(
    open_servers: Open, tmp_path: Path
) -> None:
    with HttpServer("session_server.py", FOLDER=str(tmp_path)) as server:
        servers = await open_servers(config(web={"url": server.url}))
        with pytest.raises(ServerFailed, match="The connection was closed"):
            await call(servers, "echo", "web", cut=True)
        assert await call(servers, "echo", "web") == "hello"


def hang(connection: ToolServerConnection, folder: Path) -> None:
    """Make the server of sessions answer nothing, and shorten the connection's timeout."""
    connection._timing = replace(QUICK, connect=0.5)
    (folder / "hang").touch()


async def test_hanging_server_is_failed_and_tried_again(open_servers: Open, tmp_path: Path) -> None:
    with HttpServer("session_server.py", FOLDER=str(tmp_path)) as server:
        servers = await open_servers(config(web={"url": server.url}), look=0.1)
        connection = connection_of(servers, "web")
        hang(connection, tmp_path)
        await until(lambda: state_of(servers, "web").state != "ready")
        assert state_of(servers, "web").reason == "It did not respond in time."
        assert connection._limit is not None, "the session is still being ended"
        assert not servers.tools_of("garden")
        connection._timing = QUICK
        (tmp_path / "hang").unlink()
        assert await call(servers, "echo", "web") == "hello"


async def test_server_busy_with_a_call_is_not_asked_for_its_lists(
    open_servers: Open, tmp_path: Path
) -> None:
    with HttpServer("session_server.py", FOLDER=str(tmp_path)) as server:
        asked = config(web={"url": server.url, "timeout_seconds": 600})
        servers = await open_servers(asked, look=0.1)
        hang(connection_of(servers, "web"), tmp_path)
        calling = asyncio.create_task(call(servers, "echo", "web"))
        await asyncio.sleep(1.5)
        (tmp_path / "hang").unlink()
        assert await calling == "hello"


async def test_wait_for_the_end_of_a_session_is_limited(
    open_servers: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conversations.agent.mcp.http.END_SECONDS", 0.2)
    with HttpServer("session_server.py", FOLDER=str(tmp_path)) as server:
        servers = await open_servers(config(web={"url": server.url}), look=0.1)
        connection = connection_of(servers, "web")
        hang(connection, tmp_path)
        await until(lambda: connection._session is None)
        await until(lambda: connection._limit is None)
        connection._timing = QUICK
        (tmp_path / "hang").unlink()
        await until(lambda: state_of(servers, "web").state == "ready")


async def test_each_workspace_has_its_own_program(open_servers: Open, tmp_path: Path) -> None:
    servers = await open_servers(config(plain=plain()))
    (tmp_path / "shed").mkdir()
    await servers.prepare("shed", tmp_path / "shed")
    seen = [
        json.loads((await c.call("environment", {}, report=print))["content"][0]["text"])
        for c in servers._connections.values()
    ]
    assert [one["cwd"] for one in seen] == [str(tmp_path), str(tmp_path / "shed")]


async def test_person_can_reconnect_a_server(open_servers: Open, tmp_path: Path) -> None:
    servers = await open_servers(config(plain=plain()), first_wait=60)
    pid = json.loads(await call(servers, "environment"))["pid"]
    with pytest.raises(ServerFailed):
        await call(servers, "die")
    state = await servers.connect_again("garden", tmp_path, "plain")
    assert state is not None
    assert (state.state, state_of(servers).state) == ("ready", "ready")
    assert await servers.connect_again("garden", tmp_path, "other") is None
    assert json.loads(await call(servers, "environment"))["pid"] != pid


async def test_stubborn_server_processes_are_killed_at_stop(
    open_servers: Open, tmp_path: Path
) -> None:
    servers = await open_servers(config(plain=plain("stubborn", "child")))
    pid = json.loads(await call(servers, "environment"))["pid"]
    child = int((tmp_path / "child").read_text())
    assert is_running(pid)
    assert is_running(child)
    await servers.stop()
    assert not is_running(pid)
    assert not is_running(child)


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from conversations.agent.mcp.connection import ConnectionTiming, ToolServerConnection
from tests.mcp_servers.running import config, plain
async def main():
    made = config(plain=plain("stubborn", "child"))
    root, timing = Path(sys.argv[1]), ConnectionTiming(wait=30)
    connection = ToolServerConnection(made.servers["plain"], root=root, timing=timing)
    connection.use()
    await connection.wait_connected()
    assert connection.state == "ready"
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def test_server_processes_end_if_the_main_process_is_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        cwd=BASE_DIR,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    child = int((tmp_path / "child").read_text())
    asyncio.run(until(lambda: not is_running(child)))


def test_built_in_tools_do_not_use_the_prefix_of_server_tools() -> None:
    assert not [name for name in TOOLS if name.startswith("mcp__")]
