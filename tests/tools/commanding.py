"""Calling the tools that run commands in the same way as the runtime."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings

from conversations.agent.sandbox.support import find_support
from conversations.agent.tools.registry import TOOLS, find_tool
from conversations.agent.tools.tool import ToolContext, ToolResult
from conversations.domain.tool_calls import CallPlan, ToolScope
from conversations.models import Session
from tests.changes.conftest import Calls, crossing


@dataclass
class Commands:
    """Calls tools that run commands: ``commands.run("shell_execute", command="ls")``."""

    session: Session
    scope: ToolScope = field(default_factory=lambda: ToolScope(workspace="garden", policy="auto"))
    reported: list[str] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return Path(self.session.workspace.root)

    def allow(self, **changes: Any) -> None:
        self.scope = replace(self.scope, **changes)

    def offers(self, tool: str) -> bool:
        return find_tool(tool, self.scope) is not None

    def run(self, tool: str, **arguments: Any) -> ToolResult:
        return async_to_sync(TOOLS[tool].run)(self.context(), arguments)

    def plan(self, tool: str, **arguments: Any) -> CallPlan | ToolResult:
        plan = TOOLS[tool].plan
        assert plan is not None
        return async_to_sync(plan)(self.context(), arguments)

    def shell(self, command: str, **arguments: Any) -> ToolResult:
        return self.run("shell_execute", command=command, **arguments)

    def git(self, *arguments: str) -> ToolResult:
        return self.run("git_command", arguments=list(arguments))

    def context(self) -> ToolContext:
        call = Calls(self.session).make_call(state="running")
        return ToolContext(
            session_pk=self.session.pk,
            session=self.session.uuid,
            user_pk=self.session.owner_id,
            call_turn=call.turn_number,
            root=self.root,
            read=crossing,
            write=crossing,
            scope=self.scope,
            run_pk=call.run_id,
            call_pk=call.pk,
            report=self.reported.append,
        )


@pytest.fixture
def commands(session: Session) -> Commands:
    if not find_support().bwrap:
        pytest.skip(f"NO SANDBOX HERE, so commands are not tested: {find_support().reason}")
    return Commands(session)


@pytest.fixture
def root(commands: Commands) -> Path:
    return commands.root


def set_loom(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Change settings for one test."""
    monkeypatch.setattr(settings, "LOOM", SimpleNamespace(**(vars(settings.LOOM) | changes)))
