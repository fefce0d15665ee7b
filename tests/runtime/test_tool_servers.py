"""Tools of tool servers in real runs: offered, approved, executed and recorded."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.agent.mcp.connection import ConnectionTiming
from conversations.agent.window.manifest import rebuild_request
from conversations.models import (
    FileChange,
    ModelCall,
    Session,
    ToolCall,
    ToolPermission,
    Workspace,
)
from conversations.runtime.service import Runtime
from tests.mcp_servers.running import HttpServer, config, is_running, plain, sdk, until
from tests.runtime.conftest import HttpServers, ask
from tests.runtime.tool_stories import (
    answers,
    calls_of,
    endings,
    notices,
    require_whole,
    results,
    until_waiting,
)
from tests.tools.test_mcp import QUICK, connection_of
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)

type Start = Callable[..., Any]


@pytest.fixture
def http_server(http_servers: HttpServers) -> Iterator[HttpServer]:
    """Yield a server of the SDK, forked from a process that has loaded it already."""
    with http_servers() as running:
        yield running


@pytest.fixture
def auto(garden: Session) -> Path:
    """Let calls run without approval, and return the workspace's folder."""
    Workspace.objects.update(tool_policy="auto")
    return Path(garden.workspace.root)


def offered(wire: WireThread, number: int = -1) -> list[str]:
    """Return the names of the tool servers' tools in a request."""
    tools = wire.requests[number]["tools"]
    return [tool["name"] for tool in tools if tool["name"].startswith("mcp__")]


async def test_a_call_needs_approval_and_can_be_always_allowed(
    start_runtime: Start, wire: WireThread, garden: Session
) -> None:
    runtime: Runtime = await start_runtime(mcp=config(plain=plain()), mcp_timing=QUICK)
    wire.enqueue(*answers(("mcp__plain__touch", {"name": "bean.txt"})))
    await runtime.send(garden, client_id="client-1", text="go", user_pk=garden.owner_id)
    [call] = await until_waiting(garden)
    [asked] = await notices(garden, "approval_asked")
    assert asked.data is not None
    assert asked.data["summary"] == "touch of plain"
    assert asked.data["command"] == '{\n  "name": "bean.txt"\n}'
    assert asked.data["kind_key"] == f"mcp:plain:touch:{asked.data['basis']}"
    assert "note" not in asked.data
    assert asked.data["kind_label"] == "calls of touch of plain"
    root = Path(garden.workspace.root)
    assert not (root / "bean.txt").exists()
    await runtime.decide_call(garden, call=call.uuid, decision="always", user_pk=garden.owner_id)
    await runtime.wait_idle(garden.pk)
    assert (root / "bean.txt").exists()
    assert await results(garden) == ['{"name": "bean.txt"}']
    [change] = [change async for change in FileChange.objects.filter(call=call.pk)]
    assert change.path == "bean.txt"
    allowed = ToolPermission.objects.filter(kind__startswith="mcp:plain:touch:", revoked_at=None)
    assert await allowed.acount() == 1
    wire.enqueue(*answers(("mcp__plain__touch", {"name": "pea.txt"}), prefix="again"))
    assert (await ask(runtime, garden, "more")).state == "completed"
    assert (root / "pea.txt").exists()
    calls = [call.pk async for call in ModelCall.objects.order_by("pk")]
    rebuilt = [await sync_to_async(rebuild_request)(pk) for pk in calls]
    assert [(one.matches, one.reason) for one in rebuilt] == [(True, "")] * 4
    await require_whole(garden)


async def test_a_tool_that_its_server_has_changed_needs_a_new_approval(
    start_runtime: Start, wire: WireThread, garden: Session
) -> None:
    runtime, call = await ask_to_touch(start_runtime, wire, garden)
    await runtime.decide_call(garden, call=call.uuid, decision="always", user_pk=garden.owner_id)
    await runtime.wait_idle(garden.pk)
    await describe_anew(runtime, garden)
    wire.enqueue(*answers(("mcp__plain__touch", {"name": "bean.txt"}), prefix="again"))
    await runtime.send(garden, client_id="client-2", text="go", user_pk=garden.owner_id)
    [again] = await until_waiting(garden)
    *_, asked = await notices(garden, "approval_asked")
    assert asked.data is not None
    assert "has changed" in asked.data["note"]
    await runtime.decide_call(garden, call=again.uuid, decision="always", user_pk=garden.owner_id)
    await runtime.wait_idle(garden.pk)
    assert await ToolPermission.objects.filter(revoked_at=None).acount() == 1
    wire.enqueue(*answers(("mcp__plain__touch", {"name": "pea.txt"}), prefix="third"))
    assert (await ask(runtime, garden, "more")).state == "completed"
    assert (Path(garden.workspace.root) / "pea.txt").exists()


async def test_a_tool_changed_before_an_always_allowed_call_asks_again(
    start_runtime: Start, wire: WireThread, garden: Session
) -> None:
    runtime, call = await ask_to_touch(start_runtime, wire, garden)
    await runtime.decide_call(garden, call=call.uuid, decision="always", user_pk=garden.owner_id)
    await runtime.wait_idle(garden.pk)
    bean = ("mcp__plain__touch", {"name": "bean.txt"})
    wire.enqueue(*answers(("mcp__plain__environment", {}), bean, prefix="again"))
    await runtime.send(garden, client_id="client-2", text="go", user_pk=garden.owner_id)
    [call] = await until_waiting(garden)
    await describe_anew(runtime, garden)
    await runtime.decide_call(garden, call=call.uuid, decision="deny", user_pk=garden.owner_id)
    again = call
    while again == call:  # the call stays waiting until its run reads the decision
        [again] = await until_waiting(garden)
    assert again.name == "mcp__plain__touch"
    *_, asked = await notices(garden, "approval_asked")
    assert asked.data is not None
    assert "has changed" in asked.data["note"]
    await runtime.stop_run(garden)
    assert not (Path(garden.workspace.root) / "bean.txt").exists()


async def describe_anew(runtime: Runtime, garden: Session) -> None:
    """Have the server describe its tools in other words."""
    (Path(garden.workspace.root) / "described_anew").touch()
    await connection_of(runtime.tool_servers).call("echo", {"grow": True}, report=print)

    def described() -> str:
        tools = runtime.tool_servers.tools_of(garden.workspace.slug)
        return tools["mcp__plain__touch"].description

    await until(lambda: "anew" in described())


async def ask_to_touch(
    start_runtime: Start, wire: WireThread, garden: Session
) -> tuple[Runtime, ToolCall]:
    """Return a runtime and a call that waits in it for approval."""
    runtime: Runtime = await start_runtime(mcp=config(plain=plain()), mcp_timing=QUICK)
    wire.enqueue(*answers(("mcp__plain__touch", {})))
    await runtime.send(garden, client_id="client-1", text="go", user_pk=garden.owner_id)
    [call] = await until_waiting(garden)
    return runtime, call


async def test_a_waiting_call_can_be_approved_in_another_process(
    start_runtime: Start, wire: WireThread, garden: Session, tmp_path: Path
) -> None:
    first, call = await ask_to_touch(start_runtime, wire, garden)
    await first.stop()
    second: Runtime = await start_runtime(
        mcp=config(plain=plain()), mcp_timing=QUICK, data_dir=tmp_path / "second"
    )
    await second.decide_call(garden, call=call.uuid, decision="once", user_pk=garden.owner_id)
    await second.wait_idle(garden.pk)
    assert await results(garden) == ["{}"]
    await require_whole(garden)


async def test_a_tool_that_changed_across_a_restart_is_not_called(
    start_runtime: Start, wire: WireThread, garden: Session, tmp_path: Path
) -> None:
    first, call = await ask_to_touch(start_runtime, wire, garden)
    await first.stop()
    second: Runtime = await start_runtime(
        mcp=config(plain=plain("described_anew")), mcp_timing=QUICK, data_dir=tmp_path / "second"
    )
    await second.decide_call(garden, call=call.uuid, decision="once", user_pk=garden.owner_id)
    await second.wait_idle(garden.pk)
    [said] = await results(garden)
    assert said.startswith("This is no longer the tool that was approved")
    assert not (tmp_path / "touched").exists()


async def test_a_tool_that_changes_while_its_call_waits_is_not_called(
    start_runtime: Start, wire: WireThread, garden: Session
) -> None:
    runtime, call = await ask_to_touch(start_runtime, wire, garden)
    await describe_anew(runtime, garden)
    await runtime.decide_call(garden, call=call.uuid, decision="once", user_pk=garden.owner_id)
    await runtime.wait_idle(garden.pk)
    [said] = await results(garden)
    assert said.startswith("This is no longer the tool that was approved")
    assert not (Path(garden.workspace.root) / "touched").exists()
    await require_whole(garden)


async def test_a_changed_tool_is_not_called_after_another_call_of_the_answer(
    start_runtime: Start, wire: WireThread, garden: Session, tmp_path: Path
) -> None:
    first: Runtime = await start_runtime(mcp=config(plain=plain()), mcp_timing=QUICK)
    bean, pea = {"name": "bean.txt"}, {"name": "pea.txt"}
    wire.enqueue(*answers(("mcp__plain__touch", bean), ("mcp__plain__touch", pea)))
    await first.send(garden, client_id="client-1", text="go", user_pk=garden.owner_id)
    call, other = await until_waiting(garden, 2)
    await first.decide_call(garden, call=call.uuid, decision="once", user_pk=garden.owner_id)
    await until_waiting(garden)
    await first.stop()
    second: Runtime = await start_runtime(
        mcp=config(plain=plain("described_anew")), mcp_timing=QUICK, data_dir=tmp_path / "second"
    )
    await second.decide_call(garden, call=other.uuid, decision="once", user_pk=garden.owner_id)
    await second.wait_idle(garden.pk)
    made, said = await results(garden)
    assert made == '{"name": "bean.txt"}'
    assert said.startswith("This is no longer the tool that was approved")
    assert not (Path(garden.workspace.root) / "pea.txt").exists()


async def test_a_call_that_is_approved_late_leaves_no_program_behind(
    start_runtime: Start, wire: WireThread, garden: Session
) -> None:
    runtime: Runtime = await start_runtime(mcp=config(plain=plain()), mcp_timing=QUICK)
    wire.enqueue(*answers(("mcp__plain__environment", {})))
    await runtime.send(garden, client_id="client-1", text="go", user_pk=garden.owner_id)
    [call] = await until_waiting(garden)
    unused = connection_of(runtime.tool_servers)
    unused.last_used -= QUICK.idle + 1
    runtime.tool_servers.close_unused()
    await until(lambda: unused.state == "off")
    await runtime.decide_call(garden, call=call.uuid, decision="once", user_pk=garden.owner_id)
    await runtime.wait_idle(garden.pk)
    pid = json.loads((await results(garden))[0])["pid"]
    assert is_running(pid)
    assert (unused.state, runtime.tool_servers.count_states()["ready"]) == ("off", 1)
    await runtime.stop()
    assert not is_running(pid)


async def test_results_of_an_sdk_server_are_text_pictures_and_errors(
    start_runtime: Start, wire: WireThread, garden: Session, auto: Path, settings: Any
) -> None:
    settings.LOOM.max_output_bytes, before = 1000, settings.LOOM.max_output_bytes
    runtime: Runtime = await start_runtime(mcp=config(sdk=sdk()), mcp_timing=QUICK)
    try:
        wire.enqueue(
            *answers(
                ("mcp__sdk__echo", {"text": "hello"}),
                ("mcp__sdk__fail", {}),
                ("mcp__sdk__picture", {}),
                ("mcp__sdk__flood", {"size": 5000}),
                ("mcp__sdk__echo", {"text": 7}),
            )
        )
        await ask(runtime, garden, "go")
    finally:
        settings.LOOM.max_output_bytes = before
    said = await results(garden)
    assert said[0] == f"hello from {auto.name}"
    assert said[1] == "Error executing tool fail"
    assert said[2] == "Shown below."
    assert said[3].startswith("xxx")
    assert "[4,000 more bytes of output were dropped.]" in said[3]
    assert [ending.ok for ending in await endings(garden)] == [
        True,
        False,
        True,
        True,
        False,
    ]
    picture = wire.requests[-1]["messages"][-1]["content"][2]["content"]
    assert [picture[0]["type"], picture[-1]["type"]] == ["text", "image"]
    await require_whole(garden)


async def test_progress_is_shown_and_a_stop_is_passed_on_to_the_server(
    start_runtime: Start,
    wire: WireThread,
    garden: Session,
    auto: Path,
    http_server: HttpServer,
    open_page: Callable[[Runtime], Any],
) -> None:
    made = config(sdk={"url": http_server.url})
    runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    wire.enqueue(*answers(("mcp__sdk__steps", {"count": 2}), ("mcp__sdk__echo", {"text": "on"})))
    page = open_page(runtime)
    await runtime.send(garden, client_id="client-1", text="go", user_pk=garden.owner_id)

    def shown() -> str:
        return "".join(frame.get("text", "") for frame in page.of_type("call"))

    await page.until(lambda: "2/2 step 2\n" in shown())
    [call, _] = await calls_of(garden)
    await runtime.cancel_call(garden, call=call.uuid, user_pk=garden.owner_id)
    await runtime.wait_idle(garden.pk)
    first, second = await results(garden)
    assert first.startswith("Stopped by ann after")
    assert "1/2 step 1" in first
    assert second == f"on from {Path.cwd().name}"
    await require_whole(garden)


async def test_a_chat_continues_after_a_server_dies_during_a_call(
    start_runtime: Start, wire: WireThread, garden: Session, auto: Path
) -> None:
    runtime: Runtime = await start_runtime(mcp=config(plain=plain()), mcp_timing=QUICK)
    wire.enqueue(
        Scenario(text="I try.", tools=answers(("mcp__plain__die", {}))[0].tools),
        *answers(("mcp__plain__echo", {"a": 1}), prefix="second"),
    )
    run = await ask(runtime, garden, "go")
    assert run.state == "completed"
    assert await results(garden) == [
        "The tool server plain is not answering. It ended with exit code 7. Last output: it was "
        "too much",
        '{"a": 1}',
    ]
    assert [ending.ok for ending in await endings(garden)] == [False, True]
    assert len(offered(wire)) == 6
    await require_whole(garden)


async def test_tools_of_a_failed_server_are_left_out_and_the_chat_goes_on(
    start_runtime: Start, wire: WireThread, garden: Session, auto: Path
) -> None:
    runtime: Runtime = await start_runtime(
        mcp=config(good=plain(), bad=plain("missing_library"), mute=plain("silent")),
        mcp_timing=ConnectionTiming(wait=0.5, connect=60),
    )
    servers = runtime.tool_servers
    await servers.prepare(garden.workspace.slug, auto)
    await until(lambda: {"ready": 1, "failed": 1}.items() <= servers.count_states().items())
    wire.enqueue(*answers(("mcp__bad__echo", {}), ("mcp__good__echo", {"b": 2})))
    assert (await ask(runtime, garden, "go")).state == "completed"
    assert {name.split("__")[1] for name in offered(wire, 0)} == {"good"}
    assert offered(wire, 0) == offered(wire, 1)
    first, second = await results(garden)
    assert first.startswith("The tool server bad is not answering. It ended with exit code 1.")
    assert second == '{"b": 2}'
    states = {state.name: state.state for state in servers.describe(garden.workspace.slug)}
    assert states == {"bad": "failed", "good": "ready", "mute": "connecting"}
    await require_whole(garden)


async def test_a_read_only_workspace_offers_only_reading_tools(
    start_runtime: Start, wire: WireThread, garden: Session
) -> None:
    await Workspace.objects.aupdate(tool_policy="read_only")
    runtime: Runtime = await start_runtime(
        mcp=config(plain=plain(trust_hints=True)), mcp_timing=QUICK
    )
    wire.enqueue(*answers(("mcp__plain__touch", {}), ("mcp__plain__echo", {"c": 3})))
    await ask(runtime, garden, "go")
    assert offered(wire) == ["mcp__plain__echo"]
    assert await results(garden) == [
        "This workspace is read-only: tools cannot change anything.",
        '{"c": 3}',
    ]


async def test_no_tool_server_runs_after_the_runtime_has_stopped(
    start_runtime: Start, wire: WireThread, garden: Session, auto: Path
) -> None:
    runtime: Runtime = await start_runtime(mcp=config(plain=plain("child")), mcp_timing=QUICK)
    wire.enqueue(*answers(("mcp__plain__environment", {})), *answers(("mcp__plain__wait", {})))
    await ask(runtime, garden, "go")
    pid = json.loads((await results(garden))[0])["pid"]
    await runtime.stop()
    child = int((auto / "child").read_text())
    await until(lambda: not is_running(pid) and not is_running(child))
