"""``shell_execute``: its output, its approval and where it is offered."""

from pathlib import Path
from typing import Any

import pytest

from conversations.agent.sandbox import support
from conversations.domain.session_state.commands import exit_code
from conversations.domain.tool_calls import CallPlan

from .commanding import Commands, commands, root, set_loom

__all__ = ["commands", "root"]


def test_successful_command_returns_only_its_output(commands: Commands) -> None:
    result = commands.shell("echo hello; echo there >&2")
    assert (result.ok, result.output, result.exit_code) == (True, "hello\nthere\n", 0)
    assert "".join(commands.reported) == "hello\nthere\n"
    assert commands.shell("true").output == "[no output]"


def test_failed_command_returns_an_exit_code_for_the_session_state(commands: Commands) -> None:
    result = commands.shell("printf oops; exit 3")
    assert (result.ok, result.output, result.exit_code) == (False, "oops\n[exit code 3]", 3)
    assert exit_code(result.output) == 3
    assert commands.shell("no-such-program").exit_code == 127


def test_command_runs_only_in_a_folder_of_the_workspace(
    commands: Commands, root: Path, tmp_path: Path
) -> None:
    (root / "src").mkdir()
    (root / "out").symlink_to(tmp_path)
    assert commands.shell("pwd", folder="src").output == f"{root}/src\n"
    for folder in ("..", "out", "/etc", "none"):
        assert not commands.shell("touch made", folder=folder).ok
    assert not list(tmp_path.glob("made"))


def test_timeout_is_named_in_the_result(
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
def test_invalid_command_is_refused_before_approval(
    commands: Commands, arguments: dict[str, Any]
) -> None:
    for answer in (
        commands.plan("shell_execute", **arguments),
        commands.run("shell_execute", **arguments),
    ):
        assert not isinstance(answer, CallPlan)
        assert not answer.ok
        assert answer.output.endswith(".")


def test_approval_shows_the_exact_command(commands: Commands, root: Path) -> None:
    (root / "src").mkdir()
    plan = commands.plan("shell_execute", command="pytest -q tests", folder="src")
    assert isinstance(plan, CallPlan)
    assert plan.effect == "changes"
    assert plan.summary == "Run pytest -q tests in src"
    assert plan.command == "pytest -q tests"
    assert plan.note == "Runs in a sandbox without network access."
    assert plan.kind_key == 'line:["src", "pytest -q tests"]'
    assert plan.kind_label == "exactly “pytest -q tests” in src"


def test_approval_points_out_invisible_characters(commands: Commands) -> None:
    plan = commands.plan("shell_execute", command="echo \u202egnp.exe")
    assert isinstance(plan, CallPlan)
    assert plan.note.endswith(
        "The command contains invisible characters, or characters that change the direction "
        "of text."
    )
    assert not plan.kind_key


def test_tool_is_offered_only_if_commands_may_run_and_change_files(
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


def test_approval_names_network_access(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    set_loom(monkeypatch, shell_network=True)
    commands.allow(allows_network=True)
    plan = commands.plan("shell_execute", command="ls")
    assert isinstance(plan, CallPlan)
    assert plan.note == "Runs in a sandbox with network access."


def test_command_is_refused_if_the_disk_is_nearly_full(
    commands: Commands, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_loom(monkeypatch, min_free_mib=2**40)
    result = commands.shell("touch made")
    assert not result.ok
    assert result.output.startswith("The server's disk is nearly full")
    assert not (root / "made").exists()


def test_model_is_told_that_files_took_too_much_space(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_loom(monkeypatch, command_max_written_mb=1)
    result = commands.shell("for i in 1 2 3 4; do head -c 1048576 /dev/zero > f$i; done; sleep 60")
    assert not result.ok
    assert "its files together took more than 1 MiB of disk space" in result.output
