"""Provider classes by the kind of their protocol."""

from collections.abc import Sequence

from conversations.domain.stream import ModelInfo, Provider

from .anthropic_messages import AnthropicProvider
from .config import ANTHROPIC, OPENAI, OPENAI_RESPONSES, ProviderConfig
from .openai_chat import OpenAIChatProvider
from .openai_responses import OpenAIResponsesProvider
from .sdk_client import SdkProvider

PROVIDERS: dict[str, type[SdkProvider]] = {
    ANTHROPIC: AnthropicProvider,
    OPENAI: OpenAIChatProvider,
    OPENAI_RESPONSES: OpenAIResponsesProvider,
}


def make_provider(
    config: ProviderConfig, *, timeout: float, fallback_models: Sequence[ModelInfo] = ()
) -> Provider:
    """Return the provider of this configuration.

    Nothing is imported or opened before its first use."""
    return PROVIDERS[config.kind](
        api_key=config.api_key,
        base_url=config.url,
        timeout=timeout,
        fallback_models=fallback_models,
    )
