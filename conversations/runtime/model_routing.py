"""The models on offer: listing them, their limits and capabilities, and routing calls to them."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
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

WARM_UP_SECONDS = 1.0  # Delay after the start, when pages have to be served first

MAX_LIST_SECONDS = 3.0  # Limit on how long a first answer waits for the list of models

# Interval until a server that listed no models is asked again, while others list some.
LIST_RETRY_INTERVAL = timedelta(seconds=60)

MIN_GROWTH_FACTOR = 1.2  # Growth of a limit from which the window's start moves back

MIN_REPORTED_TOKENS = 50  # A window with a smaller estimate says nothing about the ratio

SMALL = re.compile(r"haiku|\b(mini|nano)\b")  # Matches the ids of inexpensive models

# Default of the provider that the key of the Messages API sets up
DEFAULT_MODEL = "claude-sonnet-5-5"

NO_TOOLS = "[]"

NOTHING_KNOWN: Mapping[str, bool] = MappingProxyType({})

# Error codes of the cheaper model for summaries and titles after which the session's own model is
# asked.
REPLACED_BY_OWN = ("unknown_model", "permission", "invalid_request")

_DATED = re.compile(r"(.+?)-(?:\d{8}|\d{4}-\d{2}-\d{2})")

_INPUT_WORDS = {IMAGES: say("images"), DOCUMENTS: "PDF"}


def named_models(config: ProviderConfig, options: RuntimeOptions) -> list[ModelInfo]:
    """Return the models of a provider that the settings name, by the provider's own ids."""
    return list(options.models) if config.is_plain else config.configured_models()


def offered_models(options: RuntimeOptions) -> list[ModelInfo]:
    """Return the models that the settings name, for use before a server was asked."""
    offered = [
        config.describe(model)
        for config in options.providers
        for model in named_models(config, options)
    ]
    return offered or [DEMO_MODEL]


def group_models(models: Sequence[ModelInfo], *, chosen: str) -> list[tuple[str, list[ModelInfo]]]:
    """Return the names of providers with their models, as menus show them.

    A dated version of a model is left out if the list has the model without a date, unless the
    dated version is the chosen one. The chosen model is listed even if it is not on offer any more.
    """
    ids = {model.id for model in models}
    groups: dict[str, list[ModelInfo]] = {}
    for model in models:
        dated = _DATED.fullmatch(model.id)
        if dated is None or dated[1] not in ids or model.id == chosen:
            groups.setdefault(model.provider, []).append(model)
    if chosen and chosen not in ids:
        unavailable = ModelInfo(id=chosen, name=chosen, max_input_tokens=0, max_output_tokens=0)
        groups[say("Not available")] = [unavailable]
    return list(groups.items())


def describe_model(model: ModelInfo, prices: PriceList) -> str:
    """Return a line with the id, provider, limit, capabilities and price of a model, as known."""
    accepted = [word for name, word in _INPUT_WORDS.items() if model.takes.get(name)]
    missing: list[str] = [say("no tools")] if model.takes.get(TOOLS) is False else []
    price = price_of(prices, model.id)
    cost = ""
    if price:
        input_cost, output_cost = f"${price.input:g}", f"${price.output:g}"
        cost = say("%(input)s in, %(output)s out per million", input=input_cost, output=output_cost)
    size = model.max_input_tokens
    limit = say("%(count)s tokens", count=tokens_text(size)) if size else ""
    abilities = join_messages(accepted + missing, ", ")
    return join_messages((model.id, model.provider, limit, abilities, cost), " · ")


def stamp_of(path: Path) -> int:
    """Return when a file was changed, in nanoseconds, or 0 if there is no file."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def default_model(
    chosen: str, providers: Sequence[ProviderConfig], listed: Sequence[ModelInfo]
) -> str:
    """Return the model of sessions without a chosen one, or an empty string if none is on offer.

    ``chosen`` is the model of the settings.
    """
    is_plain = any(config.is_plain for config in providers)
    default = chosen or (DEFAULT_MODEL if is_plain else "")
    return default or next((model.id for model in listed), "")


@dataclass(slots=True, kw_only=True)
class ProviderState:
    """A provider with the last reply of its server: its models, or the error.

    ``checked_at`` is None until the server was asked.
    """

    config: ProviderConfig
    provider: Provider
    models: list[ModelInfo]
    error: str = ""
    checked_at: datetime | None = None


class ModelRouter:
    """Routes each model call to the provider of its model.

    If no provider is configured, the demo model answers.
    """

    def __init__(self, options: RuntimeOptions, database: Database) -> None:
        self._options = options
        self._database = database
        self._listing: asyncio.Task[None] | None = None
        self._learnt: Mapping[str, LearntModel] = {}
        self._asked_loaded: set[str] = set()
        self._demo = DemoProvider(delay=options.demo_delay)
        self.states: dict[str, ProviderState] = {}
        self._closing: list[Provider] = []  # removed providers that may still write answers
        self._file_stamp = stamp_of(settings.LOOM.providers_file)
        self.listed: list[ModelInfo] = [DEMO_MODEL]
        self._use(options.providers)

    def _use(self, providers: Sequence[ProviderConfig]) -> None:
        for config in providers:
            configured = named_models(config, self._options)
            provider = make_provider(
                config, timeout=self._options.provider_timeout, fallback_models=configured
            )
            models = [config.describe(model) for model in configured]
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
        """Yield the answer of the provider that has the request's model.

        Raise ProviderError if the call fails or no provider has the model.
        """
        provider, model = self._route(request.model)
        is_plain = model == request.model  # so its JSON is not made again
        items = provider.stream(request if is_plain else replace(request, model=model))
        async with aclosing(items):
            async for item in items:
                # Thinking blocks are accepted back only by the model that made them, which the
                # requested name identifies. A model that was requested by an alias answers under
                # another name, which may be the one that has a price.
                if isinstance(item, MessageStarted | MessageCompleted):
                    prefix = request.model.removesuffix(model)
                    answered_as = prefix + item.model if item.model else ""
                    item = replace(item, model=request.model, answered_as=answered_as)
                if isinstance(item, MessageCompleted):
                    self._ask_what_is_loaded(request.model)
                yield item

    def _ask_what_is_loaded(self, model: str) -> None:
        """Refresh a provider after the first answer of a model whose limit is not known, once.

        Ollama says how large a model's window is only while the model is loaded.
        """
        for state in self.states.values():
            for info in state.models:
                if info.id == model and not info.is_limit_known and model not in self._asked_loaded:
                    self._asked_loaded.add(model)
                    self._database.run_in_background(self._learn_loaded(state, info))

    async def _learn_loaded(self, state: ProviderState, listed: ModelInfo) -> None:
        await self.refresh([state])
        loaded = next((info for info in state.models if info.id == listed.id), listed)
        if loaded.is_limit_known:
            await self._learn(
                learn_input_limit,
                listed.id,
                tokens=loaded.max_input_tokens,
                listed=listed.max_input_tokens,
            )

    def _route(self, model: str) -> tuple[Provider, str]:
        """Return the provider of a model and the provider's own id of it."""
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
        """Return the model that answers in a session with this chosen model, which may be empty.

        The result is empty if no model is on offer.
        """
        if self.is_demo:
            return DEMO_MODEL.id
        if chosen and chosen != DEMO_MODEL.id:
            return chosen
        providers = [state.config for state in self.states.values()]
        return default_model(self._options.model, providers, self.listed)

    def compact_model_for(self, own_model: str) -> str:
        """Return the model that writes summaries in a session with the model ``own_model``."""
        if self.is_demo:
            return own_model
        return self._options.compact_model or self._small_model(own_model)

    def title_model_for(self, own_model: str) -> str:
        """Return the model that writes the title of a session with the model ``own_model``."""
        chosen = self._options.title_model
        return self._small_model(own_model) if chosen == "auto" else chosen

    def sampling_model_for(self, own_model: str, hints: Sequence[str]) -> str:
        """Return the model that tool servers may ask in a session with the model ``own_model``.

        It is the first model of the same provider whose id contains a hint, or else ``own_model``.
        """
        for state in self.states.values():
            if any(info.id == own_model for info in state.models):
                for hint in hints:
                    for info in state.models:
                        if hint.casefold() in info.id.casefold():
                            return info.id
        return own_model

    def _small_model(self, own_model: str) -> str:
        """Return a small model of the same provider, because turns must reach no other provider."""
        for state in self.states.values():
            if any(info.id == own_model for info in state.models):
                small = (info.id for info in state.models if SMALL.search(info.id.lower()))
                return next(small, own_model)
        return own_model

    def find(self, model: str) -> ModelInfo:
        """Return what is known of a model from its server, or else the defaults for its name.

        Facts that were learnt from requests since then replace those.
        """
        info = next((info for info in self.listed if info.id == model), None)
        info = info or make_model(model)
        learnt = self._learnt.get(model)
        if learnt is None:
            return info
        if learnt.input_tokens and learnt.listed_tokens == info.max_input_tokens:
            info = replace(info, max_input_tokens=learnt.input_tokens, is_limit_known=True)
        return replace(info, takes={**info.takes, **learnt.takes})

    def names_limit(self, model: str) -> bool:
        """Return whether the model's server or its configuration names its limit."""
        return any(info.is_limit_known for info in self.listed if info.id == model)

    def limits_of(self, model: str) -> tuple[int, int]:
        """Return the input and output limits of a model in tokens, capped by the installation's."""
        info, options = self.find(model), self._options
        output = min(info.max_output_tokens, options.max_output_tokens)
        return min(info.max_input_tokens, options.max_input_tokens), output

    async def learn_limit(self, model: str, tokens: int) -> None:
        """Save the limit that a model's server has shown by refusing a request with more tokens."""
        listed = next((info.max_input_tokens for info in self.listed if info.id == model), None)
        listed = listed or make_model(model).max_input_tokens
        await self._learn(learn_input_limit, model, tokens=tokens, listed=listed)

    async def learn_capability(self, model: str, capability: str, *, takes: bool) -> None:
        """Save that the model's server accepted something, or refused a request because of it."""
        await self._learn(learn_capability, model, capability=capability, takes=takes)

    async def _learn(self, write: Callable[..., None], model: str, **learnt: Any) -> None:
        await self._database.writer.write(write, model, **learnt)
        self._learnt = await self._database.readers.read(list_learnt_models)

    async def forget_learnt(self, name: str) -> None:
        """Delete what was learnt of a provider's models, and ask all providers again."""
        state = self.states[name]
        ids = [model.id for model in state.models]
        self._asked_loaded.difference_update(ids)
        await self._database.writer.write(forget_learnt, ids)
        await self.refresh()

    async def reload(self, providers: Sequence[ProviderConfig]) -> None:
        """Use these providers from now on. Answers that are being written end as they began."""
        states = self.states
        unchanged = {name: state for name, state in states.items() if state.config in providers}
        removed = [state for name, state in states.items() if name not in unchanged]
        self.states = unchanged
        self._use([config for config in providers if config.name not in unchanged])
        self._closing += [state.provider for state in removed]
        await self.refresh()

    async def follow_file(self) -> None:
        """Reload the providers file if it has changed.

        The models page of any process may add a provider to it.
        """
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
        """Ask these providers, or all, for their models. A failing one keeps its last list."""
        await asyncio.gather(*map(self._list_models, states or self.states.values()))
        self._join_lists()
        self._learnt = await self._database.readers.read(list_learnt_models)

    async def _list_models(self, state: ProviderState) -> None:
        try:
            models = await state.provider.list_models()
            state.error = ""
            if models:
                listed_ids = {model.id for model in models}
                configured = state.config.configured_models()
                models += [model for model in configured if model.id not in listed_ids]
                state.models = [state.config.describe(model) for model in models]
        except ProviderError as error:
            state.error = error.message
            fields = {"error_code": error.code, "provider": state.config.name}
            logger.warning("models_not_listed", extra={"fields": fields})
        state.checked_at = timezone.now()

    async def warm_up(self) -> None:
        """Load the providers' SDKs (two seconds of processor time) before an answer needs them."""
        await asyncio.sleep(WARM_UP_SECONDS)
        for state in [*self.states.values()]:
            await state.provider.warm_up()

    def prepare(self) -> None:
        """List models in the background before the first answer of a person needs them.

        Servers that listed no model are asked again, because they may have been started since.
        """
        if self._listing is not None and not self._listing.done():
            return
        due = [state for state in self.states.values() if self._is_due(state)]
        if due:
            self._listing = self._database.run_in_background(self.refresh(due))

    def _is_due(self, state: ProviderState) -> bool:
        if state.checked_at is None:
            return True
        is_lacking = bool(state.error) or not state.models
        return is_lacking and (
            not self.listed or timezone.now() - state.checked_at > LIST_RETRY_INTERVAL
        )

    async def wait_until_listed(self) -> None:
        """Wait a limited time until the providers have listed their models.

        The first window is made by the limits in these lists.
        """
        await self.follow_file()
        self.prepare()
        if self._listing is None or self._listing.done():
            return
        if not self.listed or any(state.checked_at is None for state in self.states.values()):
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
    min_ratio: float = 0.0,
    **fields: Any,
) -> tuple[str, Window]:
    """Return the system prompt and the window of a session's next model call.

    ``limits`` are the model's input and output limits in tokens, ``takes`` its other known
    capabilities. ``more_tools`` are the tools of tool servers and, with ``has_own_tools``, those of
    the program that sends the request. ``choices`` are the program's parameters of the answer.
    ``tools`` is the JSON of the tools on offer, if it is known. ``min_ratio`` is the ratio of
    real to estimated tokens that the server's refusals have shown. ``fields`` are further fields of
    :class:`WindowSpec`.
    """
    limit, output = limits
    reads = facts.reads_instruction_files
    # The same workspace, folder, settings and session always give the same bytes.
    system = build_system_prompt(
        workspace_name=facts.workspace_name,
        root=facts.root,
        instructions=facts.instructions,
        own_instructions=facts.own_instructions,
        reads_instruction_files=settings.LOOM.read_instruction_files if reads is None else reads,
    )
    grows = facts.context_limit > 0 and limit > facts.context_limit * MIN_GROWTH_FACTOR
    if takes.get(TOOLS) is False:
        tools = NO_TOOLS
    elif tools is None:
        tools = offered_tools(facts.scope, more_tools)
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
        ratio=max(min_ratio, facts.token_ratio if facts.token_model == model else 0.0),
        first_tools=tuple(more_tools) if has_own_tools else (),
        rules=rules_of(facts, options.rules),
        cache=options.prompt_cache,
        has_compactions=bool(facts.has_compactions),
        has_skills=bool(facts.has_skills),
        has_asides=bool(facts.has_asides),
        **fields,
    )
    return system, assemble_window(spec)


def result_cap_of(facts: WindowFacts, options: RuntimeOptions, *, limits: tuple[int, int]) -> int:
    """Return the estimated tokens above which the session's window shortens a tool's result."""
    limit, output = limits
    budget = make_budget(limit=limit, max_output=output, ratio=0.0)
    return make_caps(budget, rules_of(facts, options.rules)).result - BLOCK_FRAME_TOKENS


def rules_of(facts: WindowFacts, installed: WindowRules) -> WindowRules:
    """Return the workspace's window rules, completed by those of the installation.

    If the water marks would cross each other, both are those of the installation.
    """
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
    """Return how full the window is with its answer, by the provider's count if there is one."""
    counts = (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
    reported = sum(tokens or 0 for tokens in counts)
    is_counted = usage.input_tokens is not None and window.estimated >= MIN_REPORTED_TOKENS
    return ContextSize(
        tokens=(reported or window.estimated) + (usage.output_tokens or 0),
        limit=window.limit,
        ratio=reported / window.estimated if is_counted else window.ratio,
        model=window.request.model,
    )
