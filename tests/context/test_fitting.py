"""Fitting the parts beside the history into a small window."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.agent.tools.registry import BY_IMPORTANCE, TOOLS
from conversations.agent.window.budget import make_budget
from conversations.agent.window.fitting import (
    CUT,
    FORMS_SHARE,
    NO_TOOLS,
    FittedParts,
    fit_parts,
    fit_prompt,
    shorten_tool,
)
from conversations.agent.window.system_prompt import ARCHIVE, DATA, GUIDELINES
from conversations.domain.text import dump_json, estimate_tokens
from conversations.models import Compaction, SessionSkill

SYSTEM = f"{GUIDELINES}\n\n{ARCHIVE}\n\n{DATA}\n\nWorkspace: Garden"
ALL = dump_json([json.loads(tool.as_json) for tool in TOOLS.values()])


def fit(limit: int, *, system: str = SYSTEM, tools: str = ALL, **more: object) -> FittedParts:
    budget = make_budget(limit=limit, max_output=4_096, ratio=0)
    given: dict[str, object] = {
        "first": (),
        "state": "",
        "hint": "",
        "compaction": None,
        "parent": None,
        "skills": [],
    }
    return fit_parts(budget, system=system, tools=tools, **(given | more))  # type: ignore[arg-type]


def names_of(tools: str) -> list[str]:
    return [tool["name"] for tool in json.loads(tools)]


def test_every_tool_has_a_rank_of_importance() -> None:
    assert sorted(BY_IMPORTANCE) == sorted(TOOLS)


def test_large_window_contains_all_parts() -> None:
    parts = fit(32_768, state="rules: []", hint="[Archive: turn 3]")
    assert (parts.prompt.system, parts.prompt.tools) == (SYSTEM, ALL)
    assert (parts.has_state, parts.hint, parts.reduced) == (True, "[Archive: turn 3]", [])


def test_tool_descriptions_are_shortened_first() -> None:
    parts = fit(8_192)
    assert parts.prompt.system == SYSTEM
    assert names_of(parts.prompt.tools) == list(TOOLS)
    assert parts.reduced == ["descriptions of tools"]


def test_product_part_of_the_system_prompt_is_dropped_second() -> None:
    parts = fit(4_096)
    assert ARCHIVE not in parts.prompt.system
    assert "Workspace: Garden" in parts.prompt.system
    assert parts.reduced[:2] == ["descriptions of tools", "product's part of the system prompt"]


def test_least_important_tools_are_dropped_third() -> None:
    parts = fit(2_048)
    assert set(names_of(parts.prompt.tools)) < set(BY_IMPORTANCE[:6])
    left_out = [name.removeprefix("tool ") for name in parts.reduced if name.startswith("tool ")]
    assert sorted(names_of(parts.prompt.tools) + left_out) == sorted(TOOLS)


def test_tools_of_the_calling_program_take_precedence() -> None:
    own = {"name": "get_weather", "description": "Weather", "input_schema": {"type": "object"}}
    tools = dump_json([*json.loads(ALL), own])
    assert names_of(fit(2_048, tools=tools, first=("get_weather",)).prompt.tools)[-1] == (
        "get_weather"
    )


def test_long_instructions_are_cut_and_leave_room_for_tools() -> None:
    parts = fit(2_048, system=f"{SYSTEM}\n\n{'Always be kind. ' * 2_000}")
    assert parts.prompt.system.endswith(CUT)
    assert "end of the system prompt" in parts.reduced
    assert parts.prompt.tools != NO_TOOLS


@pytest.mark.parametrize("ratio", [0, 1.0, 1.25, 1.5, 1.67, 1.75, 2.0, 2.25])
def test_most_important_tool_stays_for_any_token_ratio(ratio: float) -> None:
    """If a model has read a file and is then given no tools, it writes its next call as text."""
    budget = make_budget(limit=2_048, max_output=4_096, ratio=ratio)
    forms = fit_prompt(SYSTEM, ALL, room=int(budget.for_prompt * FORMS_SHARE))
    assert "read_file" in names_of(forms.tools)


def test_summary_is_cut_and_skills_are_left_out() -> None:
    summary = Compaction(summary="word " * 2_000, to_turn=9)
    skill = SessionSkill(name="baking", content="flour " * 3_000, turn_number=3)
    parts = fit(4_096, compaction=summary, skills=[skill])
    assert parts.summary_chars
    assert parts.summary_chars < len(summary.summary)
    assert parts.skills == []
    assert {"end of the summary", "skill baking"} <= set(parts.reduced)


def test_shortened_tool_keeps_only_the_parts_that_a_call_needs() -> None:
    schema = {
        "type": "object",
        "title": "Arguments",
        "properties": {
            "description": {"type": "string", "description": "What it is."},
            "kind": {"enum": ["title", "description"], "description": "Which."},
            "of": {"items": {"type": "string", "description": "One."}, "type": "array"},
        },
        "required": ["description"],
    }
    tool = {"name": "note", "description": "Take a note. It is kept.", "input_schema": schema}
    assert shorten_tool(tool) == {
        "name": "note",
        "description": "Take a note",
        "input_schema": {
            "type": "object",
            "properties": {
                "description": {"type": "string"},
                "kind": {"enum": ["title", "description"]},
                "of": {"items": {"type": "string"}, "type": "array"},
            },
            "required": ["description"],
        },
    }


def test_forms_do_not_change_with_every_reported_ratio() -> None:
    """Otherwise the provider's cache would be lost from the first byte on."""
    rooms = {
        make_budget(limit=2_048, max_output=500, ratio=ratio / 100).for_prompt
        for ratio in range(90, 116)
    }
    assert max(rooms) - min(rooms) <= 2
    assert len({fit_prompt(SYSTEM, ALL, room=room) for room in rooms}) == 1


@given(
    limit=st.integers(300, 60_000),
    ratio=st.sampled_from([0, 0.6, 1.0, 1.7, 4.0]),
    sizes=st.lists(st.integers(0, 30_000), min_size=6, max_size=6),
    count=st.integers(0, 60),
)
def test_parts_always_leave_room_for_the_history(
    limit: int, ratio: float, sizes: list[int], count: int
) -> None:
    system, state, hint, summary, skill, size = sizes
    tool = {"description": "d" * (size % 900), "input_schema": {"type": "object"}}
    tools = dump_json([{"name": f"t{number}"} | tool for number in range(count)])
    budget = make_budget(limit=limit, max_output=4_096, ratio=ratio)
    parts = fit_parts(
        budget,
        system="s " * (system // 2),
        tools=tools,
        first=(),
        state="s" * state,
        hint="h" * hint,
        compaction=Compaction(summary="s" * summary, to_turn=2),
        parent=None,
        skills=[SessionSkill(name="a", content="c" * skill, turn_number=1)],
    )
    assert parts.cost <= max(0, budget.for_parts) + estimate_tokens(CUT) + 2
    kept = names_of(parts.prompt.tools)
    assert kept == [name for name in names_of(tools) if name in kept]
