"""Calls that wait for approval: asked about, decided from any tab, kept across restarts."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from conversations.archive.runs import interrupt_run
from conversations.archive.tool_calls import grant_permission, list_permissions, revoke_permission
from conversations.domain.errors import Conflict, Rejected
from conversations.domain.events import TURN_SEPARATOR
from conversations.domain.tool_calls import WAITING
from conversations.models import (
    ChatEvent,
    DraftChunk,
    FileChange,
    Membership,
    Run,
    Session,
    ToolCall,
    Workspace,
)
from conversations.runtime.options import RuntimeOptions
from conversations.runtime.service import Runtime
from tests.runtime.conftest import Page, ask, run_state
from tests.runtime.sample_tools import sample_tools, witness
from tests.runtime.tool_stories import (
    answers,
    calls_of,
    endings,
    notices,
    require_whole,
    results,
    until_done,
    until_waiting,
)
from tests.waiting_calls import leave_question
from tests.wire.scenario import Scenario
from tests.wire.scenario import ToolCall as WireCall
from tests.wire.server import WireThread

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("tools")]


@pytest.fixture
def tools() -> Iterator[None]:
    with sample_tools():
        yield


@pytest.fixture
def folder(garden: Session) -> Path:
    """Return the workspace's folder. Calls that change something in it need approval."""
    return Path(garden.workspace.root)


async def send(runtime: Runtime, session: Session, text: str = "go") -> None:
    await runtime.send(session, client_id=f"client-{text}", text=text, user_pk=session.owner_id)


async def allow(runtime: Runtime, session: Session, call: ToolCall, decision: str = "once") -> None:
    await runtime.decide_call(session, call=call.uuid, decision=decision, user_pk=session.owner_id)


async def test_a_changing_call_waits_for_approval(
    runtime: Runtime,
    wire: WireThread,
    garden: Session,
    folder: Path,
    open_page: Callable[[Runtime], Page],
) -> None:
    wire.enqueue(*answers(("add", {"line": "beans"})))
    page = open_page(runtime)
    await send(runtime, garden)
    [call] = await until_waiting(garden)
    assert witness(folder) == []
    await page.until(lambda: page.of_type("state")[-1]["run_state"] == "waiting_approval")
    [asked] = await notices(garden, "approval_asked")
    assert asked.data is not None
    assert asked.data["call"] == str(call.uuid)
    assert (asked.data["summary"], asked.data["kind_key"]) == ("Add to done.txt", "files")
    await allow(runtime, garden, call)
    await runtime.wait_idle(garden.pk)
    assert witness(folder) == ["beans"]
    assert [(frame["run_state"], frame["text"]) for frame in page.of_type("state")] == [
        ("running", ""),
        ("waiting_approval", ""),
        ("running", "A tool is running"),
        ("running", ""),
        ("idle", ""),
    ]
    [ending] = await endings(garden)
    assert (ending.ok, ending.decision, ending.decided_by) == (True, "once", "ann")
    [decided] = await notices(garden, "approval_decided")
    assert decided.data is not None
    assert decided.data["by"] == "ann"
    await require_whole(garden)


async def test_the_duration_of_an_answer_excludes_the_wait_for_a_decision(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    began = monotonic()
    wire.enqueue(*answers(("add", {"line": "beans"})))
    await send(runtime, garden)
    [call] = await until_waiting(garden)
    await asyncio.sleep(0.3)
    await allow(runtime, garden, call)
    await runtime.wait_idle(garden.pk)
    whole = 1000 * (monotonic() - began)
    row = await ChatEvent.objects.filter(session=garden, event_type=TURN_SEPARATOR).alast()
    assert row is not None
    assert 0 <= json.loads(row.payload)["duration_ms"] <= whole - 300


async def test_the_model_gets_the_reason_for_a_denial(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(*answers(("add", {"line": "beans"}), ("peek", {})))
    await send(runtime, garden)
    [call] = await until_waiting(garden)
    await runtime.decide_call(
        garden, call=call.uuid, decision="deny", user_pk=garden.owner_id, reason="It is winter."
    )
    await runtime.wait_idle(garden.pk)
    assert await results(garden) == ["Denied by ann: It is winter.", "nothing"]
    denied, _ = await endings(garden)
    assert (denied.state, denied.reason, denied.ok) == ("denied", "It is winter.", False)
    assert witness(folder) == []
    await require_whole(garden)


async def test_all_calls_of_an_answer_are_asked_about_at_once_and_run_in_order(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(*answers(("add", {"line": "one"}), ("add", {"line": "two"}), ("peek", {})))
    await send(runtime, garden)
    first, second = await until_waiting(garden, 2)
    await allow(runtime, garden, second)
    assert witness(folder) == []
    await allow(runtime, garden, first)
    await runtime.wait_idle(garden.pk)
    assert await results(garden) == ["Added.", "Added.", "one,two"]


async def test_a_dependent_call_is_asked_about_after_the_first_call_has_run(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(*answers(("add", {"line": "one"}), ("add", {"line": "two", "after": "one"})))
    await send(runtime, garden)
    [first] = await until_waiting(garden)
    await allow(runtime, garden, first)
    await until_done(folder, "one")
    [second] = await until_waiting(garden)
    assert second.pk != first.pk
    await allow(runtime, garden, second)
    await runtime.wait_idle(garden.pk)
    assert witness(folder) == ["one", "two"]


async def test_an_approved_call_fails_if_its_file_was_changed_meanwhile(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(*answers(("add", {"line": "beans"})))
    await send(runtime, garden)
    [call] = await until_waiting(garden)
    (folder / "done.txt").write_text("somebody else\n")
    await allow(runtime, garden, call)
    await runtime.wait_idle(garden.pk)
    assert await results(garden) == ["The file is not what it was when you were asked."]
    assert witness(folder) == ["somebody else"]


async def test_the_first_decision_counts(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    bob = await User.objects.acreate(username="bob")
    wire.enqueue(*answers(("add", {"line": "one"}), ("add", {"line": "two"})))
    await send(runtime, garden)
    first, second = await until_waiting(garden, 2)
    await allow(runtime, garden, second)
    await allow(runtime, garden, second)  # the same decision again
    with pytest.raises(Conflict, match="ann has already allowed this call"):
        await runtime.decide_call(garden, call=second.uuid, decision="deny", user_pk=bob.pk)
    assert len(await notices(garden, "approval_decided")) == 1
    await runtime.stop_run(garden)
    await runtime.wait_idle(garden.pk)
    with pytest.raises(Conflict, match="was stopped"):
        await allow(runtime, garden, first)
    await require_whole(garden)


async def test_an_always_allowed_kind_asks_again_after_it_is_revoked(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(
        *answers(
            ("add", {"line": "one"}), ("add", {"line": "two"}), ("add", {"line": "3", "kind": "b"})
        )
    )
    await send(runtime, garden)
    first, _, _ = await until_waiting(garden, 3)
    await allow(runtime, garden, first, "always")
    [other] = await until_waiting(garden)
    assert witness(folder) == ["one", "two"]
    await allow(runtime, garden, other)
    await runtime.wait_idle(garden.pk)
    assert [ending.decision for ending in await endings(garden)] == ["always", "policy", "once"]

    wire.enqueue(*answers(("add", {"line": "four"}), prefix="b"))
    assert (await ask(runtime, garden, "again")).state == "completed"
    [permission] = await sync_to_async(list_permissions)(garden.workspace)
    assert (permission.label, str(permission.granted_by)) == ("changes of files", "ann")
    await sync_to_async(revoke_permission)(
        garden.workspace, pk=permission.pk, user_pk=garden.owner_id
    )
    wire.enqueue(*answers(("add", {"line": "five"}), prefix="c"))
    await send(runtime, garden, "once more")
    await until_waiting(garden)
    await runtime.stop_run(garden)


@pytest.mark.parametrize("was_asked", [True, False])
async def test_a_revoked_permission_does_not_let_a_later_call_run(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path, was_asked: bool
) -> None:
    if not was_asked:
        await sync_to_async(grant_permission)(
            garden.workspace_id, kind="files", label="files", user_pk=garden.owner_id
        )
    one, two = (("add", {"line": line, "file": line}) for line in ("one", "two"))
    wire.enqueue(*answers(one, ("work", {}), two))
    await send(runtime, garden)
    calls = await until_waiting(garden, 3 if was_asked else 1)
    if was_asked:
        await allow(runtime, garden, calls[1])
        await allow(runtime, garden, calls[0], "always")
    else:
        await allow(runtime, garden, calls[0])
    await until_done(folder, "begin ")
    third = (await calls_of(garden))[2]
    async with asyncio.timeout(60):
        while was_asked and not third.decision:  # set by "always" for the first call
            await asyncio.sleep(0.01)
            await third.arefresh_from_db()
    [permission] = await sync_to_async(list_permissions)(garden.workspace)
    await sync_to_async(revoke_permission)(
        garden.workspace, pk=permission.pk, user_pk=garden.owner_id
    )
    (folder / "go").touch()
    if not was_asked:
        [asked] = await until_waiting(garden)
        assert asked.pk == third.pk
        await runtime.cancel_call(garden, call=asked.uuid, user_pk=garden.owner_id)
    await runtime.wait_idle(garden.pk)
    assert (folder / "one").exists()
    assert not (folder / "two").exists(), await results(garden)
    assert ("not any more" in (await results(garden))[2]) == was_asked
    await require_whole(garden)


async def test_a_call_without_a_kind_cannot_be_always_allowed(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(*answers(("work", {})))
    await send(runtime, garden)
    [call] = await until_waiting(garden)
    with pytest.raises(Rejected, match="one at a time"):
        await allow(runtime, garden, call, "always")
    await runtime.cancel_call(garden, call=call.uuid, user_pk=garden.owner_id)
    await runtime.wait_idle(garden.pk)
    assert await results(garden) == ["Stopped by ann before it started. Nothing was done."]
    assert witness(folder) == []


async def test_an_old_question_cannot_always_allow_a_kind_that_was_dropped(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    await sync_to_async(grant_permission)(
        garden.workspace_id, kind="shell:setsid", label="setsid …", user_pk=garden.owner_id
    )
    wire.enqueue(*answers(("add", {"line": "one", "kind": "shell:setsid"})))
    await send(runtime, garden)
    [call] = await until_waiting(garden)
    with pytest.raises(Rejected, match="one at a time"):
        await allow(runtime, garden, call, "always")
    await runtime.stop_run(garden)


async def test_an_approved_call_is_refused_if_the_workspace_is_now_read_only(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(*answers(("add", {"line": "a"})))
    await send(runtime, garden)
    [call] = await until_waiting(garden)
    await Workspace.objects.aupdate(tool_policy="read_only")
    await allow(runtime, garden, call)
    await runtime.wait_idle(garden.pk)
    assert await results(garden) == ["This workspace is read-only: tools cannot change anything."]
    assert witness(folder) == []


async def test_a_new_tool_policy_applies_to_calls_that_have_not_started(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    await Workspace.objects.aupdate(tool_policy="auto")
    due = ("add", {"line": "a", "after": "end"})
    wire.enqueue(*answers(("work", {}), due, ("add", {"line": "b"})))
    await send(runtime, garden)
    await until_done(folder, "begin ")
    await Workspace.objects.aupdate(tool_policy="ask")
    (folder / "go").touch()
    [call] = await until_waiting(garden)
    assert witness(folder) == ["begin ", "end "]
    await Workspace.objects.aupdate(tool_policy="read_only")
    await allow(runtime, garden, call)
    await runtime.wait_idle(garden.pk)
    refused = "This workspace is read-only: tools cannot change anything."
    assert await results(garden) == ["y" * 10, refused, refused]
    assert witness(folder) == ["begin ", "end "]


async def test_waiting_calls_run_when_the_tool_policy_becomes_auto(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    due = ("add", {"line": "b", "after": "a"})
    wire.enqueue(*answers(("add", {"line": "a", "kind": ""}), due))
    await send(runtime, garden)
    await until_waiting(garden)
    await Workspace.objects.aupdate(tool_policy="auto")
    async with asyncio.timeout(20):
        await runtime.wait_idle(garden.pk)
    assert witness(folder) == ["a", "b"]
    assert [ending.decision for ending in await endings(garden)] == ["policy", "policy"]
    await require_whole(garden)


async def test_changing_calls_are_refused_for_a_viewers_message(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    await Membership.objects.aupdate(role="viewer")
    wire.enqueue(*answers(("add", {"line": "a"})))
    await ask(runtime, garden, "go")
    assert await results(garden) == [
        "The person whose message is being answered has read-only access."
    ]


async def test_messages_queue_and_edits_are_refused_while_a_call_waits(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(*answers(("add", {"line": "a"})), Scenario(text="And now?"))
    await send(runtime, garden)
    [call] = await until_waiting(garden)
    await send(runtime, garden, "more")
    with pytest.raises(Conflict, match="needs your approval"):
        await runtime.edit(garden, client_id="client-e", turn=1, text="no", user_pk=None)
    await allow(runtime, garden, call)
    await runtime.wait_idle(garden.pk)
    assert await run_state(garden) == "completed"
    assert witness(folder) == ["a"]


async def test_a_decision_in_another_process_reaches_the_waiting_process(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    folder: Path,
    open_page: Callable[[Runtime], Page],
) -> None:
    here, there = await start_runtime(), await start_runtime()
    wire.enqueue(*answers(("add", {"line": "a"})))
    page = open_page(there)
    await send(here, garden)
    [call] = await until_waiting(garden)
    await page.until(
        lambda: any(f["run_state"] == "waiting_approval" for f in page.of_type("state"))
    )
    await allow(there, garden, call)
    await here.wait_idle(garden.pk)
    assert witness(folder) == ["a"]
    await page.until(lambda: "turn_separator" in page.row_types)


async def test_pages_show_a_decision_made_in_another_process(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    folder: Path,
    open_page: Callable[[Runtime], Page],
) -> None:
    here, there = await start_runtime(), await start_runtime()
    wire.enqueue(*answers(("add", {"line": "one"}), ("add", {"line": "two"})))
    page = open_page(here)
    await send(here, garden)
    _, second = await until_waiting(garden, 2)
    await allow(there, garden, second)
    await page.until(lambda: "row-decided" in page.rows[-1]["html"])
    await here.stop_run(garden)


async def test_only_one_of_two_processes_that_claim_a_run_executes_it(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(*answers(("add", {"line": "one"})))
    stalled = await start_runtime(heartbeat=60, supervise=False)
    await send(stalled, garden)
    [call] = await until_waiting(garden)
    await Run.objects.aupdate(owner="")  # as if the process had been stalled for long
    living = await start_runtime()
    await allow(living, garden, call)
    await living.wait_idle(garden.pk)
    await stalled.wait_idle(garden.pk)
    assert witness(folder) == ["one"]
    assert await run_state(garden) == "completed"
    await require_whole(garden)


async def test_a_process_presumed_dead_runs_no_tools(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session, folder: Path
) -> None:
    await Workspace.objects.filter(pk=garden.workspace_id).aupdate(tool_policy="auto")
    runtime = await start_runtime(heartbeat=60, supervise=False)
    call = WireCall(name="add", input={"line": "one"})
    wire.enqueue(Scenario(words=40, rate=100, tools=(call,)), Scenario(text="Done."))
    await send(runtime, garden)
    async with asyncio.timeout(20):
        while not await DraftChunk.objects.aexists():
            await asyncio.sleep(0.01)
    run = await Run.objects.aget()
    await sync_to_async(interrupt_run)(run.pk, owner=runtime.owner.id)
    await runtime.wait_idle(garden.pk)
    assert witness(folder) == []
    assert await calls_of(garden) == []
    assert len(wire.requests) == 1
    await require_whole(garden)


async def test_a_process_presumed_dead_ends_no_call_of_its_successor(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    wire.enqueue(*answers(("add", {"line": "one"})))
    stalled = await start_runtime(heartbeat=60, supervise=False)
    await send(stalled, garden)
    [call] = await until_waiting(garden)
    await Run.objects.aupdate(owner="elsewhere")
    await allow(stalled, garden, call, "deny")
    await stalled.wait_idle(garden.pk)
    assert await results(garden) == []
    [call] = await calls_of(garden)
    assert (call.state, call.decision) == (WAITING, "deny")


async def test_waiting_calls_survive_a_restart_of_the_server(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(*answers(("add", {"line": "one"}), ("add", {"line": "two"})))
    first = await start_runtime()
    await send(first, garden)
    one, two = await until_waiting(garden, 2)
    await first.stop()
    assert await run_state(garden) == "waiting_approval"
    second = await start_runtime()
    await allow(second, garden, one)
    await until_done(folder, "one")
    await second.stop()
    third = await start_runtime()
    await allow(third, garden, two)
    await third.wait_idle(garden.pk)
    assert witness(folder) == ["one", "two"]
    run = await Run.objects.aget(session=garden)
    assert run.state == "completed"
    assert len(await notices(garden, "approval_asked")) == 2
    await require_whole(garden)


@pytest.mark.parametrize("asked", ["", "{", "[]"])
async def test_a_waiting_call_with_a_damaged_request_does_not_run_after_a_restart(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session, folder: Path, asked: str
) -> None:
    wire.enqueue(*answers(("add", {"line": "one"})))
    first = await start_runtime()
    await send(first, garden)
    [call] = await until_waiting(garden, 1)
    await first.stop()
    await ToolCall.objects.filter(pk=call.pk).aupdate(asked=asked)
    second = await start_runtime()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await second.wait_idle(garden.pk)
    await allow(second, garden, call, decision="deny")
    await second.wait_idle(garden.pk)
    assert witness(folder) == []


async def test_a_stopping_server_interrupts_a_running_call_of_a_waiting_run(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(*answers(("work", {}), ("add", {"line": "two"})))
    first = await start_runtime()
    await send(first, garden)
    work, _ = await until_waiting(garden, 2)
    await allow(first, garden, work)
    await until_done(folder, "begin ")
    await first.stop()
    assert await run_state(garden) == "waiting_approval"
    [text] = await results(garden)
    assert text.startswith("The server stopped during this call; changes made until then stay.")


async def test_two_servers_that_start_at_once_keep_a_waiting_run_waiting(
    options: RuntimeOptions, garden: Session
) -> None:
    call = await sync_to_async(leave_question)(garden)
    servers = Runtime(options), Runtime(options)
    await asyncio.gather(*(server.start() for server in servers))
    try:
        for server in servers:
            await server.queue.recover()
        assert await run_state(garden) == "waiting_approval"
        await call.arefresh_from_db()
        assert call.state == WAITING
    finally:
        for server in servers:
            await server.stop()


async def test_a_call_approved_while_no_server_ran_runs_at_the_next_start(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(*answers(("add", {"line": "one"})))
    first = await start_runtime()
    await send(first, garden)
    [call] = await until_waiting(garden)
    await first.stop()
    await sync_to_async(_decide)(garden, call)
    second = await start_runtime()
    await second.wait_idle(garden.pk)
    assert witness(folder) == ["one"]
    assert await run_state(garden) == "completed"


def _decide(session: Session, call: ToolCall) -> None:
    from conversations.archive.tool_calls import decide_call

    decide_call(session, call=call.uuid, decision="once", user_pk=session.owner_id)


async def test_a_page_opened_later_shows_the_run_as_waiting(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    from conversations.domain.keyset import parse_cursor

    wire.enqueue(*answers(("add", {"line": "one"})))
    await send(runtime, garden)
    await until_waiting(garden)
    cursor = parse_cursor("seq:0")
    frames, _ = await runtime.catch_up(garden.uuid, cursor=cursor, rewinds=None, hello=True)
    assert [f["run_state"] for f in frames if f["type"] == "state"] == ["waiting_approval"]
    assert [f["state"] for f in frames if f["type"] == "call"] == ["waiting_approval"]
    await runtime.stop_run(garden)


LONG = "".join(f"line {n} of the log, which is long enough\n" for n in range(6000))


@pytest.mark.parametrize(
    ("call", "before", "after"),
    [
        (
            ("delete_file", {"path": "photo.png"}),
            b"\x89PNG\0\0 approved",
            b"\x89PNG\0\0 somebody's",
        ),
        (
            ("write_file", {"path": "photo.png", "content": "x"}),
            b"\x89PNG\0\0 approved",
            b"\x89PNG\0\0 somebody's",
        ),
        (
            ("move_file", {"source": "a.txt", "destination": "b.txt"}),
            b"approved\n",
            b"another text\n",
        ),
        (("delete_file", {"path": "notes.log"}), LONG.encode(), f"{LONG}somebody's\n".encode()),
    ],
)
async def test_a_persons_change_is_detected_even_after_another_call_ran(
    runtime: Runtime,
    wire: WireThread,
    garden: Session,
    folder: Path,
    call: tuple[str, dict[str, Any]],
    before: bytes,
    after: bytes,
) -> None:
    file = folder / (call[1].get("path") or call[1]["source"])
    file.write_bytes(before)
    wire.enqueue(*answers(("write_file", {"path": "other.txt", "content": "x\n"}), call))
    await send(runtime, garden)
    waiting = await until_waiting(garden, 2)
    file.write_bytes(after)
    for one in waiting:
        await allow(runtime, garden, one)
    await runtime.wait_idle(garden.pk)
    assert "changed after this call was shown" in (await results(garden))[1]
    assert file.read_bytes() == after


async def test_a_call_planned_as_no_change_does_not_overwrite_a_new_content(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    (folder / "plan.md").write_text("old\n")
    paths = ("other.txt", "plan.md")
    calls = [("write_file", {"path": path, "content": "old\n"}) for path in paths]
    wire.enqueue(*answers(*calls))
    await send(runtime, garden)
    [waiting] = await until_waiting(garden, 1)
    (folder / "plan.md").write_text("theirs\n")
    await allow(runtime, garden, waiting)
    await runtime.wait_idle(garden.pk)
    assert "found to change nothing" in (await results(garden))[1]
    assert (folder / "plan.md").read_text() == "theirs\n"


async def test_changes_by_earlier_calls_of_the_answer_do_not_block_a_call(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    (folder / "a.txt").write_text("one\ntwo\n")
    edits = [
        ("edit_file", {"path": "a.txt", "old_text": old, "new_text": new})
        for old, new in (("one", "1"), ("two", "2"))
    ]
    wire.enqueue(*answers(*edits, ("move_file", {"source": "a.txt", "destination": "b.txt"})))
    await send(runtime, garden)
    waiting = await until_waiting(garden, 3)
    await asyncio.gather(*(allow(runtime, garden, call) for call in waiting))
    await runtime.wait_idle(garden.pk)
    assert (folder / "b.txt").read_text() == "1\n2\n"
    assert not (folder / "a.txt").exists()
    assert await FileChange.objects.filter(session=garden).acount() == 4, "a move changes two"
    assert [bool(ending.diff) for ending in await endings(garden)] == [True, True, False]
    await require_whole(garden)
