"""How a call of a file tool is carried out: off the event loop, with sentences for what
cannot be done; and if it changes something, prepared first, and only then applied."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conversations.changes.apply import Author, FileAction, Move, apply_changes
from conversations.domain.approvals import CallPlan
from conversations.domain.self_running import RUNS_ITSELF, runs_itself
from conversations.domain.tool_calls import CHANGES, READS
from conversations.folder.paths import find_place
from conversations.tools.arguments import Arguments
from conversations.tools.tool import PlanWith, RunWith, ToolContext, ToolResult

KIND, KIND_LABEL = "files", "changes of files"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedChange:
    """What a call would do. ``basis`` stands for the files that this was made from.
    Without ``actions`` there is nothing to do."""

    actions: tuple[FileAction, ...]
    summary: str
    output: str
    basis: str
    diff: str = ""
    note: str = ""


type Prepare[A: Arguments] = Callable[[Path, A], PreparedChange]
"""Looks at the folder and changes nothing. Raises BadArgument or Rejected."""


def reading[A: Arguments](look: Callable[[Path, A], str]) -> RunWith[A]:
    """A tool that gives text about the folder."""

    async def run(context: ToolContext, asked: A) -> ToolResult:
        return ToolResult(ok=True, output=await asyncio.to_thread(look, context.root, asked))

    return run


def planning[A: Arguments](prepare: Prepare[A]) -> PlanWith[A]:
    async def plan(context: ToolContext, asked: A) -> CallPlan | ToolResult:
        prepared = await asyncio.to_thread(prepare, context.root, asked)
        runs = await asyncio.to_thread(_runs_itself, context.root, prepared.actions)
        return CallPlan(
            effect=CHANGES if prepared.actions else READS,
            summary=prepared.summary,
            diff=prepared.diff,
            note=" ".join(filter(None, (prepared.note, RUNS_ITSELF if runs else ""))),
            # "Always" is no answer for these: nobody would see the next one.
            kind_key="" if runs else KIND,
            kind_label="" if runs else KIND_LABEL,
            basis=prepared.basis,
        )

    return plan


def _runs_itself(root: Path, actions: tuple[FileAction, ...]) -> bool:
    """By the name that was given, and by that of what it leads to."""
    paths = [action.target if isinstance(action, Move) else action.path for action in actions]
    return any(runs_itself(p) or runs_itself(find_place(root, p).path) for p in paths)


def changing[A: Arguments](prepare: Prepare[A]) -> RunWith[A]:
    async def run(context: ToolContext, asked: A) -> ToolResult:
        prepared = await asyncio.to_thread(prepare, context.root, asked)
        if context.basis and context.basis != prepared.basis:
            return ToolResult(ok=False, output=CHANGED_SINCE)
        await _apply(context, prepared)
        return ToolResult(ok=True, output=prepared.output, diff=prepared.diff)

    return run


CHANGED_SINCE = (
    "Nothing was done: the file was changed after this call was shown to a person for"
    " approval. Read it again, and repeat the call if it is still right."
)


async def _apply(context: ToolContext, prepared: PreparedChange) -> None:
    author = Author(session_pk=context.session_pk, run_pk=context.run_pk, call_pk=context.call_pk)
    if prepared.actions:
        await apply_changes(context.root, prepared.actions, author=author, write=context.write)
