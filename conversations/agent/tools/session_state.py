"""``session_state``: the model notes a decision in the register, or takes one back.

Only the call and its result are stored, as turns, and the register is derived from the turns. The
result of a strike begins with the id of the struck item.
"""

from typing import Annotated, Literal

from pydantic import Field

from conversations.archive.session_state import read_state_view
from conversations.domain.session_state import (
    FILE,
    FOR_PERSON,
    FOR_WORKSPACE,
    MAX_ITEM_CHARS,
    STATEMENT_KINDS,
    StateItem,
)
from conversations.domain.text import one_line

from .tool import BadArgument, OneOf, Text, ToolArguments, ToolContext, ToolResult, declare_tool

STATED = tuple(STATEMENT_KINDS.values())  # Kinds of items that the model may strike


class SessionStateArguments(ToolArguments):
    action: Annotated[
        Literal["note", "strike", "show"],
        OneOf,
        Field(
            description=(
                "note: add the decision 'text'. strike: take back the decision, rule,"
                " preference or value 'text'."
                " show: everything in the register, with ids."
            )
        ),
    ]
    text: Annotated[
        Text,
        Field(
            description=(
                f"For note: one sentence of at most {MAX_ITEM_CHARS} characters. For strike:"
                " the item's id, its text, or words that only it has."
            )
        ),
    ] = ""


async def run(context: ToolContext, arguments: SessionStateArguments) -> ToolResult:
    if arguments.action == "note":
        text = one_line(arguments.text, limit=MAX_ITEM_CHARS + 1)
        if not arguments.text:
            raise BadArgument("'text' must be the decision, in one sentence.")
        if len(text) > MAX_ITEM_CHARS:
            raise BadArgument(
                f"'text' must have at most {MAX_ITEM_CHARS} characters; say it shorter."
            )
        return ToolResult(ok=True, output=f"Noted: {text}")
    view = await context.read(read_state_view, context.session_pk)
    # Items of the workspace memory are listed with the session's own items, as in the window's
    # state.
    memory = [StateItem(*entry[:3], turn=0, source=entry.scope) for entry in view.kept]
    if arguments.action == "show":
        lines = "\n".join(map(_line, [*memory, *view.items]))
        lines = lines or "There is nothing in the register yet."
        return ToolResult(ok=True, output=lines)
    item = _find([*memory, *(item for item in view.items if item.kind in STATED)], arguments.text)
    if _is_kept(item):
        raise BadArgument(
            f"This {item.kind} is kept for the {item.source}; only a person can remove it."
        )
    if item.is_pinned:
        raise BadArgument(f"A person pinned this {item.kind}; only they can take it back.")
    return ToolResult(ok=True, output=f"Struck {item.id}: {item.text}")


def _find(items: list[StateItem], text: str) -> StateItem:
    """Return the item with this id or wording, or the only item that contains the words."""
    words = one_line(text, limit=2 * MAX_ITEM_CHARS).casefold()
    if not words:
        raise BadArgument("'text' must be the item to strike, as it stands in the state.")
    # The last form is that of an item in the window's state.
    same = [
        item
        for item in items
        if words in (item.id, item.text.casefold(), f"{item.text} ({_place(item)})".casefold())
    ]
    matching = same or [item for item in items if words in item.text.casefold()]
    if len(matching) == 1:
        return matching[0]
    choices = matching or items
    reason = "More than one item holds these words." if matching else "There is no such item."
    listed = "\n".join(map(_line, choices))
    raise BadArgument(f"{reason} There are:\n{listed}" if choices else f"{reason} There is none.")


def _is_kept(item: StateItem) -> bool:
    return item.source in (FOR_PERSON, FOR_WORKSPACE)


def _place(item: StateItem) -> str:
    return f"kept for the {item.source}" if _is_kept(item) else f"turn {item.turn}"


def _line(item: StateItem) -> str:
    if _is_kept(item):
        return f"kept {item.kind}: {item.text} (for the {item.source})"
    description = f"{item.action} {item.text}" if item.kind == FILE else item.text
    pinned = ", pinned" if item.is_pinned else ""
    return f"{item.id} {item.kind}: {description} (turn {item.turn}{pinned})"


TOOL = declare_tool(
    name="session_state",
    description=(
        "The session state is a short register that you always see: the person's rules,"
        " preferences and changed values, decisions, files touched, errors resolved, the current"
        " focus. It fills by itself from tool calls, commits and"
        " what the person states. Note a decision that it would miss (one sentence:"
        " what was decided, and why if it is not obvious), and strike one that no longer"
        " holds. It is for what must not be forgotten, not for progress or plans."
    ),
    arguments=SessionStateArguments,
    run=run,
)
