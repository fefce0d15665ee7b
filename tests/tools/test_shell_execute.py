"""``shell_execute``: what it gives, what a person is asked, where it is on offer."""

from pathlib import Path
from typing import Any

import pytest

from conversations.agent.sandbox import support
from conversations.domain.session_state.statements import exit_code
from conversations.domain.tool_calls import CallPlan

from .commanding import Commands, commands, root, set_loom

__all__ = ["commands", "root"]


def test_it_gives_the_output_and_nothing_else_when_all_is_well(commands: Commands) -> None:
    result = commands.shell("echo hello; echo there >&2")
    assert (result.ok, result.output, result.exit_code) == (True, "hello\nthere\n", 0)
    assert "".join(commands.reported) == "hello\nthere\n"
    assert commands.shell("true").output == "[no output]"


def test_a_failure_says_its_exit_code_as_the_session_state_reads_it(commands: Commands) -> None:
    result = commands.shell("printf oops; exit 3")
    assert (result.ok, result.output, result.exit_code) == (False, "oops\n[exit code 3]", 3)
    assert exit_code(result.output) == 3
    assert commands.shell("no-such-program").exit_code == 127


def test_it_runs_in_a_folder_of_the_workspace_only(
    commands: Commands, root: Path, tmp_path: Path
) -> None:
    (root / "src").mkdir()
    (root / "out").symlink_to(tmp_path)
    assert commands.shell("pwd", folder="src").output == f"{root}/src\n"
    for folder in ("..", "out", "/etc", "none"):
        assert not commands.shell("touch made", folder=folder).ok
    assert not list(tmp_path.glob("made"))


def test_its_time_is_said_when_it_is_over(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_loom(monkeypatch, command_max_seconds=1)
    result = commands.shell("echo begun; sleep 60", timeout_seconds=500)
    assert not result.ok
    assert result.exit_code is None
    assert result.output == ("begun\n[It was ended after 1 seconds. This is the maximum.]")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"command": ""},
        {"command": 3},
        {"command": ["ls"]},
        {"command": "a\0b"},
        {"command": "\ud800"},
        {"command": "x" * 30_001},
        {"command": "ls", "timeout_seconds": "soon"},
        {"command": "ls", "folder": 7},
    ],
)
def test_what_cannot_be_run_is_said_before_anybody_is_asked(
    commands: Commands, arguments: dict[str, Any]
) -> None:
    for answer in (
        commands.plan("shell_execute", **arguments),
        commands.run("shell_execute", **arguments),
    ):
        assert not isinstance(answer, CallPlan)
        assert not answer.ok
        assert answer.output.endswith(".")


def test_a_person_is_shown_the_very_command(commands: Commands, root: Path) -> None:
    (root / "src").mkdir()
    plan = commands.plan("shell_execute", command="pytest -q tests", folder="src")
    assert isinstance(plan, CallPlan)
    assert plan.effect == "changes"
    assert plan.summary == "Run pytest -q tests in src"
    assert plan.command == "pytest -q tests"
    assert plan.note == "Runs in a sandbox without network access."
    assert plan.kind_key == 'line:["src", "pytest -q tests"]'
    assert plan.kind_label == "exactly “pytest -q tests” in src"


def test_what_cannot_be_seen_is_pointed_out(commands: Commands) -> None:
    plan = commands.plan("shell_execute", command="echo \u202egnp.exe")
    assert isinstance(plan, CallPlan)
    assert plan.note.endswith(
        "It contains invisible characters, or characters that change the direction of text."
    )
    assert not plan.kind_key


def test_it_is_on_offer_where_things_may_be_changed_and_commands_run(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commands.offers("shell_execute")
    commands.allow(policy="read_only")
    assert not commands.offers("shell_execute")
    commands.allow(policy="ask", may_change=False)
    assert not commands.offers("shell_execute")
    commands.allow(policy="ask", may_change=True)
    monkeypatch.setenv("PATH", "")
    support.find_support.cache_clear()
    try:
        assert not commands.offers("shell_execute")
        set_loom(monkeypatch, unsandboxed_shell=True)
        assert commands.offers("shell_execute")
        plan = commands.plan("shell_execute", command="ls")
        assert isinstance(plan, CallPlan)
        assert plan.note == "Runs without a sandbox, with all rights of the server."
    finally:
        support.find_support.cache_clear()


def test_the_network_is_named(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    set_loom(monkeypatch, shell_network=True)
    commands.allow(allows_network=True)
    plan = commands.plan("shell_execute", command="ls")
    assert isinstance(plan, CallPlan)
    assert plan.note == "Runs in a sandbox with network access."


def test_no_command_that_may_write_begins_while_room_is_short(
    commands: Commands, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_loom(monkeypatch, min_free_mib=2**40)
    result = commands.shell("touch made")
    assert not result.ok
    assert result.output.startswith("The server's disk is nearly full")
    assert not (root / "made").exists()


def test_the_model_is_told_that_files_took_too_much(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_loom(monkeypatch, command_max_written_mb=1)
    result = commands.shell("for i in 1 2 3 4; do head -c 1048576 /dev/zero > f$i; done; sleep 60")
    assert not result.ok
    assert "its files together took more than 1 MiB of disk space" in result.output
