"""From a session and the settings to a window."""

from collections.abc import Mapping
from dataclasses import replace

from django.conf import settings

from conversations.agent.tools.registry import NO_MORE, offered_tools
from conversations.agent.tools.tool import Tool
from conversations.agent.window.system_prompt import build_system_prompt
from conversations.agent.window.window import Window, WindowWish, assemble_window
from conversations.archive.append import ContextSize
from conversations.archive.sessions import WindowFacts
from conversations.domain.runs import NO_CHOICES, RunChoices
from conversations.domain.stream import Usage
from conversations.domain.windows import WindowRules

from .options import RuntimeOptions

RECHOSEN = 1.2
"""How many times larger than before a limit has to be for the window to grow back."""

NO_TOOLS = "[]"

LEAST_REPORTED = 50
"""Estimated tokens below which a report says nothing about the ratio."""


def make_window(
    session_pk: int,
    facts: WindowFacts,
    options: RuntimeOptions,
    *,
    model: str,
    limits: tuple[int, int],
    hint: str = "",
    go_on: bool = False,
    share: float = 1.0,
    refuses_files: bool = False,
    more_tools: Mapping[str, Tool] = NO_MORE,
    choices: RunChoices = NO_CHOICES,
    has_own_tools: bool = False,
) -> tuple[str, Window]:
    """The system prompt and the window of a session's next model call. ``limits`` are
    the tokens that the model takes and that it may answer; ``more_tools`` those of tool
    servers and, with ``has_own_tools``, of the program that asks; ``choices`` what it asks
    of the answer."""
    limit, output = limits
    system = make_system_prompt(facts)
    grows = facts.context_limit > 0 and limit > facts.context_limit * RECHOSEN
    tools = offered_tools(facts.scope, more_tools)
    wish = WindowWish(
        session_pk=session_pk,
        floor=1 if grows else facts.floor,
        rewinds=facts.rewinds,
        model=model,
        system=system,
        tools=tools,
        choices=choices.for_tools(has_any=tools != NO_TOOLS, has_own=has_own_tools),
        limit=limit,
        max_output=output,
        ratio=facts.token_ratio if facts.token_model == model else 0.0,
        rules=rules_of(facts, options.rules),
        cache=options.prompt_cache,
        hint=hint,
        go_on=go_on,
        share=share,
        refuses_files=refuses_files,
        has_compactions=bool(facts.has_compactions),
        has_skills=bool(facts.has_skills),
    )
    return system, assemble_window(wish)


def make_system_prompt(facts: WindowFacts) -> str:
    """The same bytes for the same workspace, folder, settings and session."""
    reads = facts.reads_instruction_files
    return build_system_prompt(
        workspace_name=facts.workspace_name,
        root=facts.root,
        instructions=facts.instructions,
        own_instructions=facts.own_instructions,
        reads_instruction_files=settings.LOOM.read_instruction_files if reads is None else reads,
    )


def rules_of(facts: WindowFacts, installed: WindowRules) -> WindowRules:
    """The workspace's rules, the installation's where it has none. Marks that would
    cross each other are those of the installation."""
    rules = replace(
        installed,
        strategy=facts.strategy or installed.strategy,
        keep_recent=facts.keep_recent or installed.keep_recent,
        high_water=(facts.high_water or 0) / 100 or installed.high_water,
        low_water=(facts.low_water or 0) / 100 or installed.low_water,
    )
    if rules.low_water >= rules.high_water:
        return replace(rules, high_water=installed.high_water, low_water=installed.low_water)
    return rules


def size_after(window: Window, usage: Usage) -> ContextSize:
    """How full the window is with its answer, by the provider's count if it gave one."""
    reported = sum(
        tokens or 0
        for tokens in (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
    )
    known = usage.input_tokens is not None and window.estimated >= LEAST_REPORTED
    return ContextSize(
        tokens=(reported or window.estimated) + (usage.output_tokens or 0),
        limit=window.limit,
        ratio=reported / window.estimated if known else 0.0,
        model=window.request.model,
    )
