"""The providers by the names that the settings use."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from conversations.domain.stream import ModelInfo, Provider
from conversations.providers.anthropic_messages import AnthropicProvider
from conversations.providers.demo import DemoProvider


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOptions:
    """What the settings say about the provider; each takes what it needs."""

    api_key: str
    base_url: str | None
    timeout: float
    demo_delay: float
    fallback_models: Sequence[ModelInfo]


def make_anthropic(options: ProviderOptions) -> Provider:
    return AnthropicProvider(
        api_key=options.api_key,
        base_url=options.base_url,
        timeout=options.timeout,
        fallback_models=options.fallback_models,
    )


def make_demo(options: ProviderOptions) -> Provider:
    return DemoProvider(delay=options.demo_delay)


PROVIDERS: Mapping[str, Callable[[ProviderOptions], Provider]] = {
    AnthropicProvider.name: make_anthropic,
    DemoProvider.name: make_demo,
}


def make_provider(
    *,
    name: str,
    api_key: str,
    base_url: str | None,
    timeout: float,
    demo_delay: float,
    fallback_models: Sequence[ModelInfo],
) -> Provider:
    """A new provider of the kind ``name``; raises KeyError for an unknown one.

    ``timeout`` is in seconds of silence, ``demo_delay`` in seconds between the
    chunks of the demo model.
    """
    options = ProviderOptions(
        api_key=api_key,
        base_url=base_url,
        timeout=timeout,
        demo_delay=demo_delay,
        fallback_models=fallback_models,
    )
    return PROVIDERS[name](options)
