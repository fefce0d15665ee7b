"""The parts of a prompt beside the history, reduced if the window has no room for all of them.

Tools and system prompt alone are larger than the window of many local models. They get a fixed
share of the room beside the history, and are reduced in this order until they fit: the descriptions
of the tools, the product's part of the system prompt, optional arguments of the tools, the least
important tools, and the end of the system prompt. The remaining room is given, in this order, to
the session state, the hint, the summary, the account of an earlier session, loaded skills and the
index of omitted messages. The manifest names every part that was reduced.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from conversations.agent.tools.registry import BY_IMPORTANCE, RECALL
from conversations.domain.messages import say
from conversations.domain.text import dump_json, estimate_tokens, load_json, one_line
from conversations.models import Compaction, SessionSkill

from .budget import WindowBudget
from .parent import ParentAccount
from .system_prompt import shorten_product_part

FORMS_SHARE = 0.7  # Share of the room beside the history for tools and system prompt together
SYSTEM_SHARE = 0.5  # Maximum part of that share for the system prompt if both are reduced

MIN_SUMMARY_TOKENS = 80  # A shorter part of a summary is useless

MAX_BRIEF_CHARS = 160  # Per tool description
MAX_OPTIONAL_ARGUMENTS = 2  # Per tool, if the tools do not all fit
# Arguments that recall keeps. Without them it could not read the turns that it names, or go on.
RECALL_ARGUMENTS = frozenset(("query", "tool_name", "turns", "cursor"))

MAX_INDEX_LINES = 8  # Messages that are listed in the index of omitted messages
MAX_INDEX_LINE_CHARS = 90

NO_TOOLS = "[]"

CUT = "\n[The rest does not fit into the model's window.]"

# Keys of a JSON schema that only explain, keys whose values are not schemas, and keys whose values
# map names to schemas.
_EXPLAINING = frozenset(("description", "title", "examples", "$schema", "$comment"))
_VALUES = frozenset(("enum", "const", "required", "default"))
_NAMED = frozenset(("properties", "$defs", "definitions", "patternProperties"))


class FittedPrompt(NamedTuple):
    """The system prompt and tools as they are given, and the names of the reduced parts."""

    system: str
    tools: str
    reduced: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class FittedParts:
    """The parts of a prompt that are given beside the history.

    ``cost`` is in estimated tokens. ``summary_chars`` is the number of characters of the summary
    that are given, or None for all. ``reduced`` names the parts that are shortened or left out.
    """

    prompt: FittedPrompt
    cost: int
    has_state: bool = True
    hint: str = ""
    summary_chars: int | None = None
    parent: ParentAccount | None = None
    skills: list[SessionSkill] = field(default_factory=list)
    lines: int = MAX_INDEX_LINES
    reduced: list[str] = field(default_factory=list)


def fit_parts(
    budget: WindowBudget,
    *,
    system: str,
    tools: str,
    first: tuple[str, ...],
    state: str,
    hint: str,
    compaction: Compaction | None,
    parent: ParentAccount | None,
    skills: Sequence[SessionSkill],
) -> FittedParts:
    """Reduce the parts of a prompt to the room beside the history.

    ``tools`` are JSON. ``first`` names the tools that are most important in this session.
    """
    forms = fit_prompt(system, tools, room=int(budget.for_prompt * FORMS_SHARE), first=first)
    cost = estimate_tokens(forms.system) + estimate_tokens(forms.tools)
    parts = FittedParts(prompt=forms, cost=cost, reduced=list(forms.reduced))

    def room_left() -> int:
        return max(0, budget.for_parts - parts.cost)

    def fits(name: str, tokens: int) -> bool:
        if tokens > room_left():
            parts.reduced.append(name)
            return False
        parts.cost += tokens
        return True

    parts.has_state = not state or fits(say("session state"), estimate_tokens(state))
    if hint and (has_recall(forms.tools) or not has_recall(tools)):
        parts.hint = hint if fits(say("hint"), estimate_tokens(hint)) else ""
    if compaction and not fits(say("summary"), estimate_tokens(compaction.summary)):
        parts.summary_chars = 0
        if (room := room_left()) >= MIN_SUMMARY_TOKENS:
            parts.summary_chars = len(cut_to_tokens(compaction.summary, room)) - len(CUT)
            parts.cost += room
            parts.reduced[-1] = say("end of the summary")
    if parent and fits(say("account of the earlier session"), estimate_tokens(parent.text)):
        parts.parent = parent
    for skill in reversed(skills):  # The skill that was loaded last comes first
        if fits(say("skill %(name)s", name=skill.name), estimate_tokens(skill.content)):
            parts.skills.insert(0, skill)
    parts.lines = (
        MAX_INDEX_LINES
        if fits(say("index of omitted messages"), MAX_INDEX_LINES * MAX_INDEX_LINE_CHARS // 4)
        else 0
    )
    return parts


def has_recall(tools: str) -> bool:
    return f'"{RECALL}"' in tools


@lru_cache(maxsize=16)
def fit_prompt(system: str, tools: str, *, room: int, first: tuple[str, ...] = ()) -> FittedPrompt:
    """Reduce both until they cost at most ``room`` estimated tokens together, if possible."""
    system_cost = estimate_tokens(system)
    if system_cost + estimate_tokens(tools) <= room:
        return FittedPrompt(system, tools)
    shortened = [shorten_tool(tool) for tool in load_json(tools)]
    brief = [(str(tool["name"]), dump_json(tool)) for tool in shortened]
    reduced: tuple[str, ...] = (say("descriptions of tools"),) if brief else ()
    if system_cost + estimate_tokens(_join(brief)) <= room:
        return FittedPrompt(system, _join(brief), reduced)
    bare = [
        (name, dump_json(leave_out_arguments(tool)))
        for (name, _), tool in zip(brief, shortened, strict=True)
    ]
    ranked = _rank_tools(bare, first)
    short = shorten_product_part(system)
    system_room = room - estimate_tokens(_join(brief))
    system_room = max(system_room, int(room * SYSTEM_SHARE))
    if ranked:
        room_beside_tool = room - _cost_of(ranked[0])
        if room_beside_tool >= room // 4:
            # Otherwise a model that has called a tool may lose all of its tools
            system_room = min(system_room, room_beside_tool)
    reduced += (say("product's part of the system prompt"),) if short != system else ()
    if estimate_tokens(short) > system_room:
        short = cut_to_tokens(short, system_room)
        reduced += (say("end of the system prompt"),)
    tools_kept = _choose_tools(ranked, room=room - estimate_tokens(short))
    tools_kept = [tool for tool in bare if tool in tools_kept]
    if bare != brief:
        reduced += (say("arguments of tools"),)
    reduced += tuple(
        say("tool %(name)s", name=name) for name, text in bare if (name, text) not in tools_kept
    )
    return FittedPrompt(short, _join(tools_kept), reduced)


def _rank_tools(tools: list[tuple[str, str]], first: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the tools sorted by importance, the most important first."""
    order = {name: rank for rank, name in enumerate((*first, *BY_IMPORTANCE))}
    return sorted(tools, key=lambda tool: order.get(tool[0], len(order)))


def _choose_tools(ranked: list[tuple[str, str]], *, room: int) -> list[tuple[str, str]]:
    """Return the tools that fit into ``room``, in order of importance."""
    chosen = []
    for tool in ranked:
        if (cost := _cost_of(tool)) <= room:
            room -= cost
            chosen.append(tool)
    return chosen


def _cost_of(tool: tuple[str, str]) -> int:
    return estimate_tokens(tool[1]) + 1


def _join(tools: list[tuple[str, str]]) -> str:
    return f"[{','.join(text for _, text in tools)}]"


def shorten_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return the tool with only the first sentence of its description and a bare schema.

    The schema only has the names and types of the arguments.
    """
    sentence, _, _ = str(tool.get("description", "")).partition(". ")
    return tool | {
        "description": one_line(sentence, limit=MAX_BRIEF_CHARS),
        "input_schema": _without_explanations(tool.get("input_schema", {})),
    }


def leave_out_arguments(tool: dict[str, Any]) -> dict[str, Any]:
    """Return the tool with its required arguments and the first few optional ones."""
    schema = tool["input_schema"]
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return tool
    required = schema.get("required") or ()
    optional = [name for name in properties if name not in required][:MAX_OPTIONAL_ARGUMENTS]
    if tool["name"] == RECALL:
        optional = [name for name in properties if name in RECALL_ARGUMENTS]
    kept_properties = {
        name: definition
        for name, definition in properties.items()
        if name in required or name in optional
    }
    return tool | {"input_schema": schema | {"properties": kept_properties}}


def _without_explanations(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_explanations(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            plain[key] = {name: _without_explanations(item) for name, item in value.items()}
        elif key in _VALUES:
            plain[key] = value
        elif key not in _EXPLAINING:
            plain[key] = _without_explanations(value)
    return plain


def cut_to_tokens(text: str, tokens: int) -> str:
    """Return the beginning of a text that is too long, with a notice where it ends."""
    room = max(0, tokens - estimate_tokens(CUT))
    keep = len(text)
    while (cost := estimate_tokens(text[:keep])) > room:
        keep = min(keep * room // cost, keep - 1)
    return text[:keep] + CUT
