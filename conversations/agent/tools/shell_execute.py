"""``shell_execute``: run a shell command in the workspace's folder."""

import asyncio
import shutil
from typing import Annotated

from pydantic import Field

from conversations.agent.sandbox import support
from conversations.domain.tool_calls import CHANGES, CallPlan, ToolScope

from .commands import (
    Folder,
    Seconds,
    check_text,
    command_note,
    command_summary,
    execute,
    kind_of,
    read_folder,
)
from .tool import Text, ToolArguments, ToolContext, ToolResult, declare_tool

DESCRIPTION = """\
Run a shell command in the workspace's folder and get its output, standard output and \
standard error together. Each call is a new shell: folders and variables of an earlier one \
are gone, and nothing goes on in the background. Nobody can answer a question, so use \
options that need no answer. The workspace is writable, the rest of the system is \
read-only or absent, and there is no network unless the workspace allows it. To read, \
search and edit files use the tools for that."""


class ShellExecute(ToolArguments):
    command: Annotated[Text, Field(description="The command, as for 'bash -c'.")]
    folder: Folder = ""
    timeout_seconds: Seconds = 0


def is_offered(scope: ToolScope) -> bool:
    return scope.offers_changes and support.can_run()


async def plan(context: ToolContext, arguments: ShellExecute) -> CallPlan | ToolResult:
    text = arguments.command
    check_text(text, "command")
    real_folder = await asyncio.to_thread(read_folder, arguments.folder, context.root)
    folder = ""
    if real_folder != context.root:
        folder = str(real_folder.relative_to(context.root, walk_up=True))
    kind = kind_of(text, folder=folder)
    allows_network = support.has_network(workspace_allows=context.scope.allows_network)
    return CallPlan(
        effect=CHANGES,
        summary=command_summary(text, folder=arguments.folder if folder else ""),
        command=text,
        note=command_note(allows_network=allows_network, text=f"{text}\n{folder}"),
        basis=support.find_mode(),
        kind_key=kind.key if kind else "",
        kind_label=kind.label if kind else "",
    )


async def run(context: ToolContext, arguments: ShellExecute) -> ToolResult:
    check_text(arguments.command, "command")
    shell = shutil.which("bash", path="/usr/bin:/bin:/usr/local/bin") or "/bin/sh"
    return await execute(
        context,
        [shell, "-c", arguments.command],
        folder=await asyncio.to_thread(read_folder, arguments.folder, context.root),
        timeout_seconds=arguments.timeout_seconds,
        allows_network=support.has_network(workspace_allows=context.scope.allows_network),
    )


TOOL = declare_tool(
    name="shell_execute",
    description=DESCRIPTION,
    arguments=ShellExecute,
    run=run,
    effect=CHANGES,
    plan=plan,
    is_offered=is_offered,
)
