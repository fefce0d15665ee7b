"""The tools of this product, by name, and which of them are on offer where."""

from collections.abc import Mapping
from types import MappingProxyType

from conversations.agent.recall import tool as conversation_recall
from conversations.domain.tool_calls import CHANGES, ToolScope

from . import (
    fetch_url,
    file_changes,
    find_files,
    git_command,
    load_skill,
    read_file,
    search_files,
    session_state,
    shell_execute,
)
from .tool import Tool

TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        conversation_recall.TOOL,
        file_changes.DELETE,
        file_changes.EDIT,
        fetch_url.TOOL,
        git_command.TOOL,
        find_files.GLOB,
        find_files.LIST,
        load_skill.TOOL,
        file_changes.MOVE,
        read_file.TOOL,
        search_files.TOOL,
        session_state.TOOL,
        shell_execute.TOOL,
        file_changes.WRITE,
    )
}

RECALL = conversation_recall.TOOL.name

# For a window without room for all of them: what matters most first.
BY_IMPORTANCE = (
    *("read_file", RECALL, "list_files", "edit_file", "write_file", "shell_execute"),
    *("search_files", "glob_files", "session_state", "load_skill", "git_command", "fetch_url"),
    *("move_file", "delete_file"),
)

NO_MORE: Mapping[str, Tool] = MappingProxyType({})


def is_offered(tool: Tool, scope: ToolScope) -> bool:
    """Whether the model is told of the tool. A tool that also reads (its effect depends on the
    call) says so itself."""
    if tool.is_offered is not None:
        return tool.is_offered(scope)
    return tool.effect != CHANGES or scope.offers_changes


def offered_tools(scope: ToolScope, more: Mapping[str, Tool] = NO_MORE) -> str:
    """The tools as the provider is told of them, in a stable order: a list in JSON. ``more`` are
    those of other programs (see ``agent.mcp``), which come last, or in the place of ours."""
    tools = {**TOOLS, **more}.values()
    return f"[{','.join(tool.as_json for tool in tools if is_offered(tool, scope))}]"


def find_tool(name: str, scope: ToolScope, more: Mapping[str, Tool] = NO_MORE) -> Tool | None:
    tool = more.get(name) or TOOLS.get(name)
    return tool if tool is not None and is_offered(tool, scope) else None
