"""Calling a tool by hand, with a stored call in a workspace's folder."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from conversations.agent.tools.registry import TOOLS
from conversations.agent.tools.tool import ToolContext, ToolResult
from conversations.domain.tool_calls import CallPlan, ToolScope
from conversations.models import Session, ToolCall
from tests.changes.conftest import Calls, crossing


@dataclass
class Use:
    """Calls tools: ``use("read_file", path="a.txt")``. ``basis`` comes from an approved plan."""

    session: Session
    basis: str = ""
    reported: list[str] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return Path(self.session.workspace.root)

    def __call__(self, tool: str, **arguments: Any) -> ToolResult:
        return async_to_sync(TOOLS[tool].run)(self.context(), arguments)

    def plan(self, tool: str, **arguments: Any) -> CallPlan | ToolResult:
        plan = TOOLS[tool].plan
        assert plan is not None
        return async_to_sync(plan)(self.context(), arguments)

    @cached_property
    def call(self) -> ToolCall:
        """One call for all uses, because the tests check only results and effects."""
        return Calls(self.session).make_call(state="running")

    def context(self) -> ToolContext:
        return ToolContext(
            session_pk=self.session.pk,
            session=self.session.uuid,
            user_pk=None,
            call_turn=self.call.turn_number,
            root=self.root,
            read=crossing,
            write=crossing,
            scope=ToolScope(workspace="garden", policy="auto"),
            run_pk=self.call.run_id,
            call_pk=self.call.pk,
            basis=self.basis,
            report=self.reported.append,
        )


@pytest.fixture
def use(session: Session) -> Use:
    return Use(session)


@pytest.fixture
def root(use: Use) -> Path:
    return use.root
