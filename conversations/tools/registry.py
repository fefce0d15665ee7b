"""The tools on offer, by name, and how a call of one is carried out."""

from typing import Any

from . import conversation_recall, load_skill, session_state
from .tool import Tool, ToolContext, ToolResult

TOOLS: dict[str, Tool] = {
    tool.name: tool for tool in (conversation_recall.TOOL, load_skill.TOOL, session_state.TOOL)
}


def offered_tools() -> list[dict[str, Any]]:
    """The tools as the provider is told of them, in a stable order."""
    return [
        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
        for tool in TOOLS.values()
    ]


async def run_tool(context: ToolContext, name: str, arguments: Any) -> ToolResult:
    """Carry out a call. A tool that does not exist is an error result, which the
    model reads, and never the end of the run."""
    tool = TOOLS.get(name)
    if tool is None:
        return ToolResult(ok=False, output=f"There is no tool named {name!r} here.")
    if not isinstance(arguments, dict):
        return ToolResult(ok=False, output="The arguments of the call are not an object.")
    return await tool.run(context, arguments)
