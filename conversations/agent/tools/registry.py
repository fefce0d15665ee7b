"""The product's tools by name, and the rules by which they are offered."""

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

# For a window without room for all tools: the most important ones first.
BY_IMPORTANCE = (
    *("read_file", RECALL, "list_files", "edit_file", "write_file", "shell_execute"),
    *("search_files", "glob_files", "session_state", "load_skill", "git_command", "fetch_url"),
    *("move_file", "delete_file"),
)

NO_MORE: Mapping[str, Tool] = MappingProxyType({})


def is_offered(tool: Tool, scope: ToolScope) -> bool:
    """Return whether the tool is offered to the model.

    A tool whose effect depends on the call decides this with its own ``is_offered``.
    """
    if tool.is_offered is not None:
        return tool.is_offered(scope)
    return tool.effect != CHANGES or scope.offers_changes


def offered_tools(scope: ToolScope, more: Mapping[str, Tool] = NO_MORE) -> str:
    """Return the offered tools in a stable order, as a JSON list for the provider.

    ``more`` are tools of other programs (see ``agent.mcp``). They come last, or replace a tool of
    the same name.
    """
    tools = {**TOOLS, **more}.values()
    return f"[{','.join(tool.as_json for tool in tools if is_offered(tool, scope))}]"


def find_tool(name: str, scope: ToolScope, more: Mapping[str, Tool] = NO_MORE) -> Tool | None:
    tool = more.get(name) or TOOLS.get(name)
    return tool if tool is not None and is_offered(tool, scope) else None
