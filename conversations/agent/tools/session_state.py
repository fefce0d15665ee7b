"""``session_state``: the model notes a decision in the register, or takes one back.

Nothing is stored beside the call: the register is read off the turns, and the call and its result
are turns. The result of a strike begins with the id of what was struck.
"""

from typing import Annotated, Literal

from pydantic import Field

from conversations.archive.session_state import read_state_view
from conversations.domain.session_state import DECISION, FILE, ITEM_CHARS, StateItem
from conversations.domain.text import one_line

from .tool import Arguments, BadArgument, OneOf, Text, ToolContext, ToolResult, declare_tool


class AboutState(Arguments):
    action: Annotated[
        Literal["note", "strike", "show"],
        OneOf,
        Field(
            description=(
                "note: add the decision 'text'. strike: take back the decision 'text'."
                " show: everything in the register, with ids."
            )
        ),
    ]
    text: Annotated[
        Text,
        Field(
            description=(
                f"For note: one sentence of at most {ITEM_CHARS} characters. For strike:"
                " the decision's id, its text, or words that only it has."
            )
        ),
    ] = ""


async def run(context: ToolContext, asked: AboutState) -> ToolResult:
    if asked.action == "note":
        text = one_line(asked.text, limit=ITEM_CHARS + 1)
        if not asked.text:
            raise BadArgument("'text' must be the decision, in one sentence.")
        if len(text) > ITEM_CHARS:
            raise BadArgument(f"'text' must have at most {ITEM_CHARS} characters; say it shorter.")
        return ToolResult(ok=True, output=f"Noted: {text}")
    view = await context.read(read_state_view, context.session_pk)
    if asked.action == "show":
        told = "\n".join(map(_line, view.items)) or "There is nothing in the register yet."
        return ToolResult(ok=True, output=told)
    decisions = [item for item in view.items if item.kind == DECISION]
    found = _find(decisions, asked.text)
    if found.is_pinned:
        raise BadArgument("A person pinned this decision; only they can take it back.")
    return ToolResult(ok=True, output=f"Struck {found.id}: {found.text}")


def _find(decisions: list[StateItem], wanted: str) -> StateItem:
    """The decision with this id or wording, or the only one that holds the words."""
    words = one_line(wanted, limit=2 * ITEM_CHARS).casefold()
    if not words:
        raise BadArgument("'text' must be the decision to strike, as it stands in the state.")
    # A decision as the state in the window has it
    same = [
        d
        for d in decisions
        if words in (d.id, d.text.casefold(), f"{d.text} (turn {d.turn})".casefold())
    ]
    found = same or [d for d in decisions if words in d.text.casefold()]
    if len(found) == 1:
        return found[0]
    choices = found or decisions
    reason = "More than one decision holds these words." if found else "There is no such decision."
    listed = "\n".join(map(_line, choices))
    raise BadArgument(f"{reason} There are:\n{listed}" if choices else f"{reason} There is none.")


def _line(item: StateItem) -> str:
    what = f"{item.action} {item.text}" if item.kind == FILE else item.text
    pinned = ", pinned" if item.is_pinned else ""
    return f"{item.id} {item.kind}: {what} (turn {item.turn}{pinned})"


TOOL = declare_tool(
    name="session_state",
    description=(
        "The session state is a short register that you always see: files touched, decisions,"
        " errors resolved, the current focus. It fills by itself from tool calls, commits and"
        " what the person states as a rule. Note a decision that it would miss (one sentence:"
        " what was decided, and why if it is not obvious), and strike one that no longer"
        " holds. It is for what must not be forgotten, not for progress or plans."
    ),
    arguments=AboutState,
    run=run,
)
