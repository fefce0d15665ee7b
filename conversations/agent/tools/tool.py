"""What a tool is, how one is declared, and what a call of one is given and gives."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

from conversations.agent.undo.file_changes import Crossing
from conversations.domain.errors import Rejected
from conversations.domain.text import dump_json
from conversations.domain.tool_calls import READS
from conversations.domain.tool_policy import CallPlan, ToolScope

from .arguments import Arguments, BadArgument, schema_of


def _say_nothing(text: str) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """For whom a call is carried out, and its ways to the archive. ``user_pk`` is the person whose
    message is being answered; None: a program of the server. ``call_turn`` is the turn that holds
    the call, ``call_pk`` the call's record, ``root`` the workspace's folder. ``basis`` is that of
    the plan which was approved, empty where nobody was asked. ``report`` shows output while the
    call runs: text to add to what was shown. ``write`` is one transaction."""

    session_pk: int
    session: UUID
    user_pk: int | None
    call_turn: int
    root: Path
    read: Crossing
    write: Crossing
    scope: ToolScope
    run_pk: int
    call_pk: int
    basis: str = ""
    report: Callable[[str], None] = _say_nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call gave: text for the model and the row; ``ok`` False: it failed.

    ``blocks`` are content blocks that the model gets behind the text (images and PDFs by reference,
    see ``archive.attachments``), ``diff`` what was changed, as unified diff, for the row."""

    ok: bool
    output: str
    blocks: list[dict[str, Any]] = field(default_factory=list)
    diff: str = ""
    exit_code: int | None = None


type Run = Callable[[ToolContext, dict[str, Any]], Awaitable[ToolResult]]
type Planning = Callable[[ToolContext, dict[str, Any]], Awaitable[CallPlan | ToolResult]]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """``run`` gets the arguments as the model sent them: it checks them itself and answers with
    ``ok=False`` and a sentence that says what to do instead. It may be cancelled at any await, and
    leaves nothing running then.

    ``effect`` is the most that a call of it can do. A tool that can change something has a
    ``plan``, which says what this call would do, without doing it; or why it cannot be carried out,
    as a result. ``is_offered`` says where the tool is on offer, beyond the rule that one which
    always changes something is not where nothing may be changed. ``arguments`` is what it is called
    with: a declaration for a tool of ours (made by :func:`declare_tool`), a JSON schema for one of
    another program."""

    name: str
    description: str
    arguments: type[Arguments] | dict[str, Any]
    run: Run
    effect: str = READS
    plan: Planning | None = None
    is_offered: Callable[[ToolScope], bool] | None = None

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        given = self.arguments
        return given if isinstance(given, dict) else schema_of(given)

    @cached_property
    def as_json(self) -> str:
        """The tool as the provider is told of it; written once, read for every call."""
        return dump_json(
            {
                "name": self.name,
                "description": self.description,
                "input_schema": self.input_schema,
            }
        )


type RunWith[A: Arguments] = Callable[[ToolContext, A], Awaitable[ToolResult]]
type PlanWith[A: Arguments] = Callable[[ToolContext, A], Awaitable[CallPlan | ToolResult]]


def declare_tool[A: Arguments](
    *,
    name: str,
    description: str,
    arguments: type[A],
    run: RunWith[A],
    plan: PlanWith[A] | None = None,
    effect: str = READS,
    is_offered: Callable[[ToolScope], bool] | None = None,
) -> Tool:
    """A tool whose ``run`` and ``plan`` get what was sent as ``arguments``. What they raise as
    BadArgument or Rejected is told to the model."""
    return Tool(
        name=name,
        description=description,
        arguments=arguments,
        run=_reading(arguments, run),
        plan=_reading(arguments, plan) if plan else None,
        effect=effect,
        is_offered=is_offered,
    )


def _reading[A: Arguments, R](
    arguments: type[A], step: Callable[[ToolContext, A], Awaitable[R]]
) -> Callable[[ToolContext, dict[str, Any]], Awaitable[R | ToolResult]]:
    async def carry_out(context: ToolContext, sent: dict[str, Any]) -> R | ToolResult:
        try:
            return await step(context, arguments.read(sent))
        except (BadArgument, Rejected) as error:
            return ToolResult(ok=False, output=str(error))

    return carry_out
