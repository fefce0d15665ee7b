"""Commands and messages on servers with a full sandbox, with a partial one and without one."""

import asyncio
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.conf import settings

from conversations.agent.sandbox import support
from conversations.agent.sandbox.command_run import default_limits, run_command
from conversations.agent.sandbox.repositories import find_repositories, make_protection
from conversations.domain.errors import Rejected
from conversations.management.commands.serve import Command

from .processes import LONG, find_processes

pytestmark = pytest.mark.anywhere


@pytest.fixture
def no_bubblewrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine on which ``bwrap`` is installed but may not create namespaces."""
    broken = tmp_path / "bin/bwrap"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(broken.parent), prepend=":")
    support.find_support.cache_clear()
    yield
    support.find_support.cache_clear()


def set_loom(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    monkeypatch.setattr(settings, "LOOM", SimpleNamespace(**(vars(settings.LOOM) | changes)))


@pytest.mark.usefixtures("no_bubblewrap")
async def test_without_a_sandbox_commands_are_off(root: Path) -> None:
    assert not support.can_run()
    assert support.describe() == (
        "Shell: off; bubblewrap does not work on this server"
        " (bwrap: No permissions to create a namespace)."
    )
    with pytest.raises(Rejected, match="Shell: off"):
        await run_command(["true"], root=root)


@pytest.mark.usefixtures("no_bubblewrap")
def test_serve_prints_that_the_shell_is_off() -> None:
    terminal = StringIO()
    Command(stdout=terminal)._print_address("http://127.0.0.1:8000", "token")
    assert "Shell: off; bubblewrap does not work on this server" in terminal.getvalue()


@pytest.mark.usefixtures("no_bubblewrap")
async def test_an_administrator_can_allow_commands_without_a_sandbox(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "the key")
    set_loom(monkeypatch, unsandboxed_shell=True)
    assert support.describe().startswith("Shell: without a sandbox, with all rights of the server")
    assert support.has_network(workspace_allows=False)
    script = f"(setsid nohup sleep {LONG} >/dev/null 2>&1 &); env; pwd; exit 2"
    done = await run_command(["/bin/sh", "-c", script], root=root)
    assert done.exit_code == 2
    assert done.output.endswith(f"{root}\n")
    assert "the key" not in done.output
    assert not find_processes(f"sleep {LONG}")


@pytest.mark.parametrize("refused", ["--size", "--disable-userns", "--seccomp", "--cap-add"])
async def test_an_older_bubblewrap_is_used_without_the_missing_option(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    real = support.find_support().bwrap
    if not support.find_support().abilities.protects:
        pytest.skip("NO SANDBOX HERE, or none that protects what git obeys")
    older = tmp_path / "bin/bwrap"
    older.parent.mkdir()
    refuse = f"case \" $* \" in *' {refused} '*) echo 'bwrap: Unknown option' >&2; exit 1;; esac"
    older.write_text(f'#!/bin/sh\n{refuse}\nexec {real} "$@"\n')
    older.chmod(0o755)
    monkeypatch.setenv("PATH", str(older.parent), prepend=":")
    for name in ("HEAD", "config", "objects", "refs"):
        (root / ".git" / name).mkdir(parents=True)
    support.find_support.cache_clear()
    try:
        assert support.can_run()
        assert support.find_support().abilities.protects == (refused != "--cap-add")
        protection = make_protection(root, find_repositories(root))
        command = ["/bin/sh", "-c", "mv .git g || echo protected"]
        done = await run_command(command, root=root, protection=protection)
    finally:
        support.find_support.cache_clear()
    assert ("protected" in done.output) == (refused != "--cap-add")


@pytest.mark.usefixtures("no_bubblewrap")
async def test_limits_apply_without_a_sandbox(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_loom(monkeypatch, unsandboxed_shell=True, command_max_processes=30)
    limits = default_limits(seconds=20)
    bomb = f"trap '' TERM; for n in $(seq 50); do setsid sleep {LONG} & done; wait"
    done = await run_command(["/bin/sh", "-c", bomb], root=root, limits=limits)
    assert done.reason == "processes"
    deaf = f"trap '' TERM; setsid -f sleep {LONG}; while :; do sleep {LONG}; done"
    limits = default_limits(seconds=1)
    done = await run_command(["/bin/sh", "-c", deaf], root=root, limits=limits)
    assert done.reason == "time"
    assert not find_processes(f"sleep {LONG}")


@pytest.mark.usefixtures("no_bubblewrap")
async def test_repeated_cancelling_without_a_sandbox_leaves_no_processes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_loom(monkeypatch, unsandboxed_shell=True)
    begun = asyncio.Event()
    deaf = f"trap '' TERM; (trap '' TERM; exec sleep {LONG}) & echo begun; wait; sleep {LONG}"
    limits = default_limits(seconds=30)
    command = ["/bin/sh", "-c", deaf]
    running = asyncio.create_task(
        run_command(command, root=root, limits=limits, report=lambda _: begun.set())
    )
    await asyncio.wait_for(begun.wait(), 60)
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)
    assert not find_processes(f"sleep {LONG}")


def test_the_workspace_and_the_installation_must_allow_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not support.find_support().bwrap:
        pytest.skip("NO SANDBOX HERE")
    assert not support.has_network(workspace_allows=True)
    set_loom(monkeypatch, shell_network=True)
    assert support.has_network(workspace_allows=True)
    assert not support.has_network(workspace_allows=False)
