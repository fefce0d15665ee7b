"""Fixtures: a folder that stands for a workspace, and a function that runs commands in it."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from conversations.agent.sandbox.command_run import (
    CommandLimits,
    CompletedCommand,
    default_limits,
    run_command,
)
from conversations.agent.sandbox.repositories import find_repositories, make_protection
from conversations.agent.sandbox.support import find_support


@pytest.fixture(autouse=True)
def _needs_bubblewrap(request: pytest.FixtureRequest) -> None:
    if not find_support().bwrap and not request.node.get_closest_marker("anywhere"):
        pytest.skip(f"NO SANDBOX HERE, so commands are not tested: {find_support().reason}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def sh(root: Path) -> Callable[..., Any]:
    """A function that runs a shell command in the sandbox. Limits are keyword arguments."""

    async def sh(text: str, **given: Any) -> CompletedCommand:
        names = [limit.name for limit in fields(CommandLimits)]
        changed = {name: given.pop(name) for name in names if name in given}
        limits = replace(default_limits(seconds=20), **changed)
        given.setdefault("protection", make_protection(root, find_repositories(root)))
        return await run_command(["/bin/sh", "-c", text], root=root, limits=limits, **given)

    return sh
