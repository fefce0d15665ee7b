"""The product's own tools in real runs: approved, executed and stopped."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.agent.sandbox import command_run
from conversations.agent.sandbox.command_run import CompletedCommand
from conversations.agent.sandbox.support import can_run, find_support
from conversations.models import Session, Workspace
from conversations.runtime.service import Runtime
from tests.runtime.conftest import Page, run_state
from tests.runtime.tool_stories import (
    answers,
    calls_of,
    endings,
    notices,
    require_whole,
    results,
    until_waiting,
)
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_file_that_is_written_and_then_edited_is_asked_about_twice(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    edit = {"path": "new.py", "old_text": "a", "new_text": "b"}
    wire.enqueue(
        *answers(("write_file", {"path": "new.py", "content": "a\n"}), ("edit_file", edit))
    )
    await runtime.send(garden, client_id="client-1", text="go", user_pk=garden.owner_id)
    for _ in range(2):
        [call] = await until_waiting(garden)
        await runtime.decide_call(garden, call=call.uuid, decision="once", user_pk=garden.owner_id)
        await until_ended(garden, call.pk)
    await runtime.wait_idle(garden.pk)
    assert (Path(garden.workspace.root) / "new.py").read_text() == "b\n", await results(garden)


async def until_ended(garden: Session, pk: int) -> None:
    async with asyncio.timeout(30):
        while any(c.pk == pk and c.result_turn is None for c in await calls_of(garden)):
            await asyncio.sleep(0.01)


async def test_a_running_command_shows_its_output_and_can_be_stopped(
    runtime: Runtime, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    if not await sync_to_async(can_run)():
        pytest.skip("no commands can be run here")
    await Workspace.objects.aupdate(tool_policy="auto")
    makes_hook = "git init -q a; echo ls > a/.git/hooks/pre-commit"
    wire.enqueue(
        *answers(
            ("shell_execute", {"command": f"{makes_hook}; echo hello; sleep 60"}),
            ("shell_execute", {"command": "echo after; exit 3"}),
        )
    )
    page = open_page(runtime)
    await runtime.send(garden, client_id="client-1", text="go", user_pk=garden.owner_id)
    await page.until(lambda: any("hello" in f.get("text", "") for f in page.of_type("call")))
    first, _ = await calls_of(garden)
    await runtime.cancel_call(garden, call=first.uuid, user_pk=garden.owner_id)
    await runtime.wait_idle(garden.pk)
    stopped, after = await endings(garden)
    assert stopped.error.startswith("Stopped by ann after")
    assert "hello" in stopped.error
    assert "a/.git/hooks/pre-commit" in stopped.error
    assert (after.ok, after.exit_code) == (False, 3)
    assert await run_state(garden) == "completed"
    await require_whole(garden)


async def test_an_approved_fetch_is_refused_if_the_network_is_now_disallowed(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    await Workspace.objects.aupdate(allows_network=True)
    wire.enqueue(*answers(("fetch_url", {"url": "https://nobody.invalid/"})))
    await runtime.send(garden, client_id="client-1", text="go", user_pk=garden.owner_id)
    [call] = await until_waiting(garden)
    await Workspace.objects.aupdate(allows_network=False)
    await runtime.decide_call(garden, call=call.uuid, decision="once", user_pk=garden.owner_id)
    await runtime.wait_idle(garden.pk)
    assert await results(garden) == ["This workspace does not allow the network."]


@pytest.mark.parametrize("was_allowed", [False, True])
async def test_a_command_gets_the_network_only_if_it_was_approved_with_it(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    was_allowed: bool,
) -> None:
    had_network = []

    async def run_command(words: Sequence[str], **options: Any) -> CompletedCommand:
        had_network.append(options["allows_network"])
        return CompletedCommand(exit_code=0, output="")

    monkeypatch.setattr(command_run, "run_command", run_command)
    monkeypatch.setattr(settings.LOOM, "shell_network", True)
    await Workspace.objects.aupdate(allows_network=was_allowed)
    commands = [("shell_execute", {"command": command}) for command in ("make a", "make b")]
    wire.enqueue(*answers(*commands))
    first: Runtime = await start_runtime()
    await first.send(garden, client_id="client-1", text="go", user_pk=garden.owner_id)
    here, there = await until_waiting(garden, 2)
    await Workspace.objects.aupdate(allows_network=True)
    await first.decide_call(garden, call=here.uuid, decision="once", user_pk=garden.owner_id)
    await until_waiting(garden)
    await first.stop()
    second: Runtime = await start_runtime()
    await second.decide_call(garden, call=there.uuid, decision="once", user_pk=garden.owner_id)
    await second.wait_idle(garden.pk)
    assert had_network == [was_allowed, was_allowed], await results(garden)


@pytest.fixture
def losing_sandbox(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], None]]:
    """Yield a function that breaks ``bwrap`` and allows commands without a sandbox."""

    def lose() -> None:
        broken = tmp_path / "bin/bwrap"
        broken.parent.mkdir()
        broken.write_text("#!/bin/sh\nexit 1\n")
        broken.chmod(0o755)
        monkeypatch.setenv("PATH", str(broken.parent), prepend=":")
        monkeypatch.setattr(settings.LOOM, "unsandboxed_shell", True)
        find_support.cache_clear()

    yield lose
    find_support.cache_clear()


async def test_a_command_approved_for_the_sandbox_does_not_run_without_one(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    losing_sandbox: Callable[[], None],
) -> None:
    if not can_run():
        pytest.skip("NO SANDBOX HERE")
    git = ("git_command", {"arguments": "init"})
    wire.enqueue(*answers(("shell_execute", {"command": "touch made"}), git))
    first: Runtime = await start_runtime()
    await first.send(garden, client_id="client-1", text="go", user_pk=garden.owner_id)
    calls = await until_waiting(garden, 2)
    asked = [(notice.data or {})["note"] for notice in await notices(garden, "approval_asked")]
    assert asked == ["Runs in a sandbox without network access."] * 2
    await first.stop()
    losing_sandbox()
    second: Runtime = await start_runtime()
    for call in calls:
        await second.decide_call(garden, call=call.uuid, decision="once", user_pk=garden.owner_id)
    await second.wait_idle(garden.pk)
    for result in await results(garden):
        assert result.startswith("Not run: it was approved for a sandbox")
    assert not {"made", ".git"} & set(os.listdir(garden.workspace.root))
