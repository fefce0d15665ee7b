"""The models on offer: which there are, what they take, and which one answers."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from django.conf import settings
from django.utils import timezone

from conversations.agent.tools.registry import NO_MORE, offered_tools
from conversations.agent.tools.tool import Tool
from conversations.agent.window.budget import make_budget, make_caps
from conversations.agent.window.messages import BLOCK_FRAME_TOKENS
from conversations.agent.window.system_prompt import build_system_prompt
from conversations.agent.window.window import Window, WindowSpec, assemble_window
from conversations.archive.append import ContextSize
from conversations.archive.learnt_models import (
    forget_learnt,
    learn_capability,
    learn_input_limit,
    list_learnt_models,
)
from conversations.archive.sessions import WindowFacts
from conversations.domain.errors import ProviderError
from conversations.domain.messages import join_messages, say
from conversations.domain.runs import NO_CHOICES, RunChoices
from conversations.domain.stream import (
    DOCUMENTS,
    IMAGES,
    TOOLS,
    MessageCompleted,
    MessageStarted,
    ModelInfo,
    ModelRequest,
    Provider,
    StreamItem,
    Usage,
)
from conversations.domain.windows import SUMMARIZE, WindowRules
from conversations.models import LearntModel
from conversations.providers.config import ProviderConfig, ProvidersError, make_model
from conversations.providers.demo import DEMO_MODEL, DemoProvider
from conversations.providers.model_limits import PriceList, price_of
from conversations.providers.registry import make_provider
from conversations.rendering.rows import tokens_text

from .database import Database
from .options import RuntimeOptions

logger = logging.getLogger(__name__)

WARM_UP_SECONDS = 1.0  # After a start, which has pages to show first

MAX_LIST_SECONDS = 3.0  # That a first answer waits for the list of models at most

# For a server that gave no model, while others have some.
LIST_RETRY_INTERVAL = timedelta(seconds=60)

MIN_GROWTH_FACTOR = 1.2  # Of a limit, for the window to grow back

MIN_REPORTED_TOKENS = 50  # A report of fewer says nothing about the ratio

SMALL = re.compile(r"haiku|\b(mini|nano)\b")  # In the ids of models that cost little

DEFAULT_MODEL = "claude-sonnet-5-5"  # Of the provider that the key of the Messages API makes

NO_TOOLS = "[]"

NOTHING_KNOWN: Mapping[str, bool] = MappingProxyType({})


def named_models(config: ProviderConfig, options: RuntimeOptions) -> list[ModelInfo]:
    """The models of a provider that the settings name, by its own ids."""
    return list(options.models) if config.is_plain else config.configured_models()


def offered_models(options: RuntimeOptions) -> list[ModelInfo]:
    """The models that the settings name, before any server was asked."""
    offered = [
        config.describe(model)
        for config in options.providers
        for model in named_models(config, options)
    ]
    return offered or [DEMO_MODEL]


_DATED = re.compile(r"(.+?)-(?:\d{8}|\d{4}-\d{2}-\d{2})")


def group_models(models: Sequence[ModelInfo], *, chosen: str) -> list[tuple[str, list[ModelInfo]]]:
    """Names of providers and their models, as menus show them: a version of a date is left out
    where the model is there without one, unless it is the chosen one. That is in the menu also
    where it is on offer no more."""
    ids = {model.id for model in models}
    groups: dict[str, list[ModelInfo]] = {}
    for model in models:
        dated = _DATED.fullmatch(model.id)
        if dated is None or dated[1] not in ids or model.id == chosen:
            groups.setdefault(model.provider, []).append(model)
    if chosen and chosen not in ids:
        gone = ModelInfo(id=chosen, name=chosen, max_input_tokens=0, max_output_tokens=0)
        groups[say("Not available")] = [gone]
    return list(groups.items())


def describe_model(model: ModelInfo, prices: PriceList) -> str:
    """Its id, where it is, what it can take and what it costs, in a line: as far as that is
    known."""
    takes = [word for name, word in _TAKES.items() if model.takes.get(name)]
    lacks: list[str] = [say("no tools")] if model.takes.get(TOOLS) is False else []
    price = price_of(prices, model.id)
    cost = ""
    if price:
        input_cost, output_cost = f"${price.input:g}", f"${price.output:g}"
        cost = say("%(input)s in, %(output)s out per million", input=input_cost, output=output_cost)
    size = model.max_input_tokens
    limit = say("%(count)s tokens", count=tokens_text(size)) if size else ""
    abilities = join_messages(takes + lacks, ", ")
    return join_messages((model.id, model.provider, limit, abilities, cost), " · ")


# Failures of the cheaper model of summaries and titles after which the session's own one is asked.
REPLACED_BY_OWN = ("unknown_model", "permission", "invalid_request")

_TAKES = {IMAGES: say("images"), DOCUMENTS: "PDF"}


def stamp_of(path: Path) -> int:
    """When a file was changed; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def default_model(
    chosen: str, providers: Sequence[ProviderConfig], listed: Sequence[ModelInfo]
) -> str:
    """The model of sessions that have none of their own; ``chosen`` is that of the settings.
    Empty where none is on offer."""
    is_plain = any(config.is_plain for config in providers)
    default = chosen or (DEFAULT_MODEL if is_plain else "")
    return default or next((model.id for model in listed), "")


@dataclass(slots=True, kw_only=True)
class ProviderState:
    """A provider, and what its server said last: its models, or why it says nothing.
    ``checked_at`` is None before it was asked."""

    config: ProviderConfig
    provider: Provider
    models: list[ModelInfo] = field(default_factory=list)
    error: str = ""
    checked_at: datetime | None = None


class ModelRouter:
    """Routes each model call to the provider that has its model; the demo model answers
    where there is no provider."""

    def __init__(self, options: RuntimeOptions, database: Database) -> None:
        self._options = options
        self._database = database
        self._listing: asyncio.Task[None] | None = None
        self._learnt: Mapping[str, LearntModel] = {}
        self._asked_loaded: set[str] = set()
        self._demo = DemoProvider(delay=options.demo_delay)
        self.states: dict[str, ProviderState] = {}
        self._closing: list[Provider] = []  # of answers that may still be written
        self._file_stamp = stamp_of(settings.LOOM.providers_file)
        self.listed: list[ModelInfo] = [DEMO_MODEL]
        self._use(options.providers)

    def _use(self, providers: Sequence[ProviderConfig]) -> None:
        for config in providers:
            named = named_models(config, self._options)
            provider = make_provider(
                config, timeout=self._options.provider_timeout, fallback_models=named
            )
            models = [config.describe(model) for model in named]
            self.states[config.name] = ProviderState(
                config=config, provider=provider, models=models
            )
        self._join_lists()

    def _join_lists(self) -> None:
        if self.states:
            self.listed = [model for state in self.states.values() for model in state.models]

    @property
    def is_demo(self) -> bool:
        return not self.states

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamItem]:
        """The answer of the provider that has the request's model. Raises ProviderError, also
        for a model that nobody has."""
        provider, model = self._route(request.model)
        is_plain = model == request.model  # and its JSON is written once
        items = provider.stream(request if is_plain else replace(request, model=model))
        async with aclosing(items):
            async for item in items:
                # Its thinking is taken back by the same model only, by this name: what was asked
                # for by an alias answers by another one, which may be the one that has a price.
                if isinstance(item, MessageStarted | MessageCompleted):
                    prefix = request.model.removesuffix(model)
                    answered_as = prefix + item.model if item.model else ""
                    item = replace(item, model=request.model, answered_as=answered_as)
                if isinstance(item, MessageCompleted):
                    self._ask_what_is_loaded(request.model)
                yield item

    def _ask_what_is_loaded(self, model: str) -> None:
        """Ollama says how large a model's window is while it is loaded only: ask again after the
        first answer of one whose limit is not named, once."""
        for state in self.states.values():
            for info in state.models:
                if info.id == model and not info.is_limit_known and model not in self._asked_loaded:
                    self._asked_loaded.add(model)
                    self._database.run_in_background(self._learn_loaded(state, info))

    async def _learn_loaded(self, state: ProviderState, before: ModelInfo) -> None:
        await self.refresh([state])
        now = next((info for info in state.models if info.id == before.id), before)
        if now.is_limit_known:
            listed, tokens = before.max_input_tokens, now.max_input_tokens
            await self._learn(learn_input_limit, before.id, tokens=tokens, listed=listed)

    def _route(self, model: str) -> tuple[Provider, str]:
        """The provider of a model, and what the model is called there."""
        if self.is_demo:
            return self._demo, model
        name, slash, own_id = model.partition("/")
        if slash and name in self.states and not self.states[name].config.is_plain:
            return self.states[name].provider, own_id
        for state in self.states.values():
            if state.config.is_plain:
                return state.provider, model
        if not model:
            raise self._no_model()
        raise ProviderError(
            "No configured provider has the model %(model)s.", model=model, code="unknown_model"
        )

    def _no_model(self) -> ProviderError:
        reasons = [
            say("%(name)s: %(reason)s", name=name, reason=state.error)
            for name, state in self.states.items()
            if state.error
        ]
        return ProviderError(
            join_messages([say("No provider offers a model."), *reasons]),
            code="connection_failed",
            transient=True,
        )

    def model_for(self, chosen: str) -> str:
        """The model that answers where this one was chosen; empty where none is on offer."""
        if self.is_demo:
            return DEMO_MODEL.id
        if chosen and chosen != DEMO_MODEL.id:
            return chosen
        providers = [state.config for state in self.states.values()]
        return default_model(self._options.model, providers, self.listed)

    def compact_model_for(self, own: str) -> str:
        """The model that writes the summary of a session which has that one."""
        if self.is_demo or self._options.compact_model:
            return own if self.is_demo else self._options.compact_model
        return self._small_model(own)

    def title_model_for(self, own: str) -> str:
        """The model that writes the title of a session which has that one."""
        chosen = self._options.title_model
        return self._small_model(own) if chosen == "auto" else chosen

    def sampling_model_for(self, own: str, hints: Sequence[str]) -> str:
        """The model that a tool server asks in a session which has that one: the first of the
        same provider that a hint names a part of."""
        for state in self.states.values():
            if any(info.id == own for info in state.models):
                for hint in hints:
                    for info in state.models:
                        if hint.casefold() in info.id.casefold():
                            return info.id
        return own

    def _small_model(self, own: str) -> str:
        """A small model of the same provider: what a session says goes to no other one."""
        for state in self.states.values():
            if any(info.id == own for info in state.models):
                small = (info.id for info in state.models if SMALL.search(info.id.lower()))
                return next(small, own)
        return own

    def find(self, model: str) -> ModelInfo:
        """What is known of a model: what its server says, or else of one of its name; and what
        it has told since by refusing requests."""
        info = next((info for info in self.listed if info.id == model), None)
        info = info or make_model(model)
        learnt = self._learnt.get(model)
        if learnt is None:
            return info
        if learnt.input_tokens and learnt.listed_tokens == info.max_input_tokens:
            info = replace(info, max_input_tokens=learnt.input_tokens, is_limit_known=True)
        return replace(info, takes={**info.takes, **learnt.takes})

    def names_limit(self, model: str) -> bool:
        """The model's server or its configuration names its limit."""
        return any(info.is_limit_known for info in self.listed if info.id == model)

    def limits_of(self, model: str) -> tuple[int, int]:
        """The tokens that a model takes and that it may answer, within those of the
        installation."""
        info, options = self.find(model), self._options
        output = min(info.max_output_tokens, options.max_output_tokens)
        return min(info.max_input_tokens, options.max_input_tokens), output

    async def learn_limit(self, model: str, tokens: int) -> None:
        """The model's server refused a request with more tokens."""
        listed = next((one.max_input_tokens for one in self.listed if one.id == model), None)
        listed = listed or make_model(model).max_input_tokens
        await self._learn(learn_input_limit, model, tokens=tokens, listed=listed)

    async def learn_capability(self, model: str, capability: str, *, takes: bool) -> None:
        """The model's server took something, or refused a request because of it."""
        await self._learn(learn_capability, model, capability=capability, takes=takes)

    async def _learn(self, write: Callable[..., None], model: str, **learnt: Any) -> None:
        await self._database.writer.write(write, model, **learnt)
        self._learnt = await self._database.readers.read(list_learnt_models)

    async def forget_learnt(self, name: str) -> None:
        """Forget what was learnt of a provider's models, and ask it again."""
        state = self.states[name]
        ids = [model.id for model in state.models]
        self._asked_loaded.difference_update(ids)
        await self._database.writer.write(forget_learnt, ids)
        await self.refresh()

    async def reload(self, providers: Sequence[ProviderConfig]) -> None:
        """Use these from now on. Answers that are being written end as they began."""
        kept = {name: one for name, one in self.states.items() if one.config in providers}
        gone = [one for name, one in self.states.items() if name not in kept]
        self.states = kept
        self._use([config for config in providers if config.name not in kept])
        self._closing += [one.provider for one in gone]
        await self.refresh()

    async def follow_file(self) -> None:
        """Use what the file of the providers says, if it has changed: the page of the models
        adds to it, in whatever process."""
        stamp = stamp_of(settings.LOOM.providers_file)
        if stamp == self._file_stamp:
            return
        self._file_stamp = stamp
        try:
            settings.LOOM.read_providers()
        except ProvidersError as error:
            logger.warning("providers_not_read", extra={"fields": {"reason": str(error)}})
            return
        await self.reload(settings.LOOM.providers)

    async def refresh(self, states: Sequence[ProviderState] = ()) -> None:
        """Ask these providers, or all, which models they offer; keep what is known where one does
        not say."""
        await asyncio.gather(*map(self._ask, states or self.states.values()))
        self._join_lists()
        self._learnt = await self._database.readers.read(list_learnt_models)

    async def _ask(self, state: ProviderState) -> None:
        try:
            models = await state.provider.list_models()
            state.error = ""
            if models:
                listed = {model.id for model in models}
                named = state.config.configured_models()
                models += [model for model in named if model.id not in listed]
                state.models = [state.config.describe(model) for model in models]
        except ProviderError as error:
            state.error = error.message
            fields = {"error_code": error.code, "provider": state.config.name}
            logger.warning("models_not_listed", extra={"fields": fields})
        state.checked_at = timezone.now()

    async def warm_up(self) -> None:
        """Load the providers' SDKs while nobody waits for an answer: two seconds of a processor."""
        await asyncio.sleep(WARM_UP_SECONDS)
        for state in [*self.states.values()]:
            await state.provider.warm_up()

    def prepare(self) -> None:
        """Somebody is about to chat: ask what the first answer needs, once, and again the servers
        that gave no model, which may have been started since."""
        if self._listing is not None and not self._listing.done():
            return
        if due := [state for state in self.states.values() if self._is_due(state)]:
            self._listing = self._database.run_in_background(self.refresh(due))

    def _is_due(self, state: ProviderState) -> bool:
        if state.checked_at is None:
            return True
        is_lacking = bool(state.error) or not state.models
        return is_lacking and (
            not self.listed or timezone.now() - state.checked_at > LIST_RETRY_INTERVAL
        )

    async def wait_until_listed(self) -> None:
        """Wait until the providers have said which limits their models have, for a while:
        the first window is made by them."""
        await self.follow_file()
        self.prepare()
        is_needed = not self.listed or any(one.checked_at is None for one in self.states.values())
        if is_needed and self._listing is not None and not self._listing.done():
            await asyncio.wait({self._listing}, timeout=MAX_LIST_SECONDS)

    async def close(self) -> None:
        for provider in [*self._closing, *(state.provider for state in self.states.values())]:
            await provider.close()


def make_window(
    session_pk: int,
    facts: WindowFacts,
    options: RuntimeOptions,
    *,
    model: str,
    limits: tuple[int, int],
    takes: Mapping[str, bool] = NOTHING_KNOWN,
    more_tools: Mapping[str, Tool] = NO_MORE,
    tools: str | None = None,
    choices: RunChoices = NO_CHOICES,
    has_own_tools: bool = False,
    least_ratio: float = 0.0,
    **wishes: Any,
) -> tuple[str, Window]:
    """The system prompt and the window of a session's next model call. ``limits`` are
    the tokens that the model takes and that it may answer, ``takes`` what else is known of
    it; ``more_tools`` those of tool servers and, with ``has_own_tools``, of the program
    that asks; ``choices`` what it asks of the answer; ``tools`` what is on offer, where
    that is known; ``least_ratio`` what the server's refusals say of the estimate;
    ``wishes`` further fields of :class:`WindowSpec`."""
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
    grows = facts.context_limit > 0 and limit > facts.context_limit * MIN_GROWTH_FACTOR
    tools = offered_tools(facts.scope, more_tools) if tools is None else tools
    tools = NO_TOOLS if takes.get(TOOLS) is False else tools
    spec = WindowSpec(
        session_pk=session_pk,
        floor=1 if grows else facts.floor,
        rewinds=facts.rewinds,
        model=model,
        system=system,
        tools=tools,
        takes=takes,
        choices=choices.for_tools(has_any=tools != NO_TOOLS, has_own=has_own_tools),
        limit=limit,
        max_output=output,
        ratio=max(least_ratio, facts.token_ratio if facts.token_model == model else 0.0),
        first_tools=tuple(more_tools) if has_own_tools else (),
        rules=rules_of(facts, options.rules),
        cache=options.prompt_cache,
        has_compactions=bool(facts.has_compactions),
        has_skills=bool(facts.has_skills),
        has_asides=bool(facts.has_asides),
        **wishes,
    )
    return system, assemble_window(spec)


def result_cap_of(facts: WindowFacts, options: RuntimeOptions, *, limits: tuple[int, int]) -> int:
    """Above how many estimated tokens the session's window shortens a tool's result."""
    limit, output = limits
    budget = make_budget(limit=limit, max_output=output, ratio=0.0)
    return make_caps(budget, rules_of(facts, options.rules)).result - BLOCK_FRAME_TOKENS


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
    known = usage.input_tokens is not None and window.estimated >= MIN_REPORTED_TOKENS
    return ContextSize(
        tokens=(reported or window.estimated) + (usage.output_tokens or 0),
        limit=window.limit,
        ratio=reported / window.estimated if known else window.ratio,
        model=window.request.model,
    )
