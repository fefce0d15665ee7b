"""Providers by name."""

import pytest

from conversations.providers.anthropic_messages import AnthropicProvider
from conversations.providers.demo import DemoProvider
from conversations.providers.registry import PROVIDERS, make_provider


def make(name: str) -> object:
    return make_provider(
        name=name, api_key="k", base_url=None, timeout=1, demo_delay=0, fallback_models=()
    )


def test_each_name_makes_its_provider() -> None:
    assert set(PROVIDERS) == {"anthropic", "demo"}
    assert isinstance(make("anthropic"), AnthropicProvider)
    assert isinstance(make("demo"), DemoProvider)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        make("nothing")
