"""Small tools with which tests drive the tool loop.

``add`` and ``work`` write lines to a file in the workspace's folder each time they run, so a test
notices if a call is executed twice.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any

from conversations.agent.tools.registry import TOOLS
from conversations.agent.tools.tool import Tool, ToolContext, ToolResult
from conversations.agent.undo.apply import WriteAction, apply_changes
from conversations.agent.undo.disk import ChangeAuthor
from conversations.domain.errors import Rejected
from conversations.domain.tool_calls import CHANGES, READS, CallPlan

WITNESS = "done.txt"
SCHEMA = {"type": "object", "properties": {}}


def witness(root: Any) -> list[str]:
    """Return the lines that the tools have written, in order."""
    path = root / WITNESS
    return path.read_text().splitlines() if path.exists() else []


def _digest(context: ToolContext, name: str) -> str:
    path = context.root / name
    return sha256(path.read_bytes()).hexdigest() if path.exists() else ""


async def _plan_add(context: ToolContext, arguments: dict[str, Any]) -> CallPlan | ToolResult:
    """Plan to add a line to a file, with ``after`` only if that text is already in the file."""
    file, line = arguments.get("file", WITNESS), arguments["line"]
    path = context.root / file
    before = path.read_text() if path.exists() else ""
    if arguments.get("after", "") not in before:
        return ToolResult(ok=False, output=f"There is no line {arguments['after']!r}.")
    return CallPlan(
        effect=CHANGES,
        summary=f"Add to {file}",
        diff=f"@@ -{before.count(chr(10))} @@\n+{line}",
        kind_key=arguments.get("kind", "files"),
        kind_label="changes of files",
        basis=_digest(context, file) or "none",
        place=file,
    )


async def _add(context: ToolContext, arguments: dict[str, Any]) -> ToolResult:
    file = arguments.get("file", WITNESS)
    if context.basis and context.basis != (_digest(context, file) or "none"):
        return ToolResult(ok=False, output="The file is not what it was when you were asked.")
    path = context.root / file
    data = (path.read_bytes() if path.exists() else b"") + f"{arguments['line']}\n".encode()
    author = ChangeAuthor(
        session_pk=context.session_pk, run_pk=context.run_pk, call_pk=context.call_pk
    )
    put = WriteAction(path=file, data=data)
    with suppress(asyncio.CancelledError):  # raised only after the line has been written
        await apply_changes(context.root, [put], author=author, write=context.write)
    return ToolResult(ok=True, output="Added.", diff=f"+{arguments['line']}")


async def _plan_work(context: ToolContext, arguments: dict[str, Any]) -> CallPlan | ToolResult:
    return CallPlan(effect=arguments.get("effect", CHANGES), summary="Work", command="work hard")


async def _work(context: ToolContext, arguments: dict[str, Any]) -> ToolResult:
    """Report lines, then wait for a file ``go`` without a timeout.

    With ``sees_through``, ignore a cancellation and finish the work.
    """
    with (context.root / WITNESS).open("a") as out:
        out.write(f"begin {arguments.get('name', '')}\n")
    for number in range(arguments.get("lines", 1)):
        context.report(f"line {number}\n")
        await asyncio.sleep(0)
    context.report("x" * arguments.get("flood", 0))
    ignored = (asyncio.CancelledError,) if arguments.get("sees_through") else ()
    with suppress(*ignored):
        while not (context.root / "go").exists():
            await asyncio.sleep(0.01)
    with (context.root / WITNESS).open("a") as out:
        out.write(f"end {arguments.get('name', '')}\n")
    return ToolResult(
        ok=not arguments.get("exit_code"),
        output="y" * arguments.get("size", 10),
        exit_code=arguments.get("exit_code"),
    )


async def _look(context: ToolContext, arguments: dict[str, Any]) -> ToolResult:
    """Return the lines that the tools have written, or raise with ``fail`` or ``refuse``."""
    if arguments.get("refuse"):
        raise Rejected("There is no such thing.")
    if arguments.get("fail"):
        raise ZeroDivisionError
    picture = {
        "type": "image",
        "title": "bean.png",
        "source": {"type": "attachment", "digest": "0" * 64, "media_type": "image/png"},
        "attachment": "00000000-0000-0000-0000-000000000001",
    }
    return ToolResult(
        ok=True,
        output=",".join(witness(context.root)) or "nothing",
        blocks=[picture] if arguments.get("picture") else [],
    )


SAMPLE_TOOLS = (
    Tool(
        name="add",
        description="Add.",
        arguments=SCHEMA,
        run=_add,
        effect=CHANGES,
        plan=_plan_add,
    ),
    Tool(
        name="work",
        description="Work.",
        arguments=SCHEMA,
        run=_work,
        effect=CHANGES,
        plan=_plan_work,
        is_offered=lambda scope: True,
    ),
    Tool(name="peek", description="Look.", arguments=SCHEMA, run=_look, effect=READS),
)


@contextmanager
def sample_tools() -> Iterator[None]:
    """Offer the sample tools while the context is active."""
    TOOLS.update({tool.name: tool for tool in SAMPLE_TOOLS})
    try:
        yield
    finally:
        for tool in SAMPLE_TOOLS:
            del TOOLS[tool.name]
