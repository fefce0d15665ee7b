"""The models on offer: which there are, what they take, and which one answers."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.conf import settings

from conversations.agent.tools.registry import NO_MORE, offered_tools
from conversations.agent.tools.tool import Tool
from conversations.agent.window.system_prompt import build_system_prompt
from conversations.agent.window.window import Window, WindowWish, assemble_window
from conversations.archive.append import ContextSize
from conversations.archive.sessions import WindowFacts
from conversations.domain.errors import ProviderError
from conversations.domain.runs import NO_CHOICES, RunChoices
from conversations.domain.stream import ModelInfo, Provider, Usage
from conversations.domain.windows import SUMMARIZE, WindowRules
from conversations.providers.anthropic_messages import AnthropicProvider
from conversations.providers.demo import DemoProvider
from conversations.providers.model_limits import find_limits

from .database import Database
from .options import RuntimeOptions

logger = logging.getLogger(__name__)

MAX_LIST_SECONDS = 3.0  # That a first answer waits for the list of models at most

RECHOSEN = 1.2  # How many times larger than before a limit has to be for the window to grow back

LEAST_REPORTED = 50  # Estimated tokens below which a report says nothing about the ratio

NO_TOOLS = "[]"


class Models:
    def __init__(self, options: RuntimeOptions, database: Database) -> None:
        self.listed: list[ModelInfo] = list(options.models)
        self.provider: Provider = DemoProvider(delay=options.demo_delay)
        if options.api_key:
            self.provider = AnthropicProvider(
                api_key=options.api_key,
                base_url=options.base_url or None,
                timeout=options.provider_timeout,
                fallback_models=options.models,
            )
        self._options = options
        self._database = database
        self._listing: asyncio.Task[None] | None = None

    def model_for(self, chosen: str) -> str:
        return "demo" if self.provider.is_demo else chosen or self._options.model

    def compact_model_for(self, own: str) -> str:
        """The model that writes the summary of a session which has that one."""
        if self.provider.is_demo or self._options.compact_model:
            return own if self.provider.is_demo else self._options.compact_model
        return next((info.id for info in self.listed if "haiku" in info.id.lower()), own)

    def limits_of(self, model: str) -> tuple[int, int]:
        limit, output = find_limits(model)
        for info in self.listed:
            if info.id == model:
                limit, output = info.max_input_tokens, info.max_output_tokens
        options = self._options
        return min(limit, options.max_input_tokens), min(output, options.max_output_tokens)

    async def refresh(self) -> None:
        """Ask the provider which models it offers; keep the configured ones when it
        does not say."""
        try:
            self.listed = await self.provider.list_models() or self.listed
        except ProviderError as error:
            logger.warning("models_not_listed", extra={"fields": {"error_code": error.code}})

    def prepare(self) -> None:
        """Somebody is about to chat: load what the first answer needs, once."""
        if self._listing is None and not self.provider.is_demo:
            self._listing = self._database.run_in_background(self.refresh())

    async def wait_until_listed(self) -> None:
        """Wait until the provider has said which limits its models have, for a while:
        the first window is made by them."""
        self.prepare()
        if self._listing is not None and not self._listing.done():
            await asyncio.wait({self._listing}, timeout=MAX_LIST_SECONDS)


def make_window(
    session_pk: int,
    facts: WindowFacts,
    options: RuntimeOptions,
    *,
    model: str,
    limits: tuple[int, int],
    more_tools: Mapping[str, Tool] = NO_MORE,
    tools: str | None = None,
    choices: RunChoices = NO_CHOICES,
    has_own_tools: bool = False,
    **wishes: Any,
) -> tuple[str, Window]:
    """The system prompt and the window of a session's next model call. ``limits`` are
    the tokens that the model takes and that it may answer; ``more_tools`` those of tool
    servers and, with ``has_own_tools``, of the program that asks; ``choices`` what it asks
    of the answer; ``tools`` what is on offer, where that is known; ``wishes`` further
    fields of :class:`WindowWish`."""
    limit, output = limits
    reads = facts.reads_instruction_files
    # The same bytes for the same workspace, folder, settings and session.
    system = build_system_prompt(
        workspace_name=facts.workspace_name,
        root=facts.root,
        instructions=facts.instructions,
        own_instructions=facts.own_instructions,
        reads_instruction_files=settings.LOOM.read_instruction_files if reads is None else reads,
    )
    grows = facts.context_limit > 0 and limit > facts.context_limit * RECHOSEN
    tools = offered_tools(facts.scope, more_tools) if tools is None else tools
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
        has_compactions=bool(facts.has_compactions),
        has_skills=bool(facts.has_skills),
        **wishes,
    )
    return system, assemble_window(wish)


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


def summarises(facts: WindowFacts, options: RuntimeOptions) -> bool:
    return bool(options.compact_at) or rules_of(facts, options.rules).strategy == SUMMARIZE


def size_after(window: Window, usage: Usage) -> ContextSize:
    """How full the window is with its answer, by the provider's count if it gave one."""
    counts = (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
    reported = sum(tokens or 0 for tokens in counts)
    known = usage.input_tokens is not None and window.estimated >= LEAST_REPORTED
    return ContextSize(
        tokens=(reported or window.estimated) + (usage.output_tokens or 0),
        limit=window.limit,
        ratio=reported / window.estimated if known else 0.0,
        model=window.request.model,
    )
