import pytest

from conversations.providers.model_limits import takes_sampling


@pytest.mark.parametrize(
    ("model", "takes"),
    [
        ("claude-3-5-sonnet-20241022", True),
        ("claude-sonnet-4-20250514", True),
        ("claude-opus-4-1-20250805", True),
        ("claude-haiku-4-5", True),
        ("claude-opus-4-6", True),
        ("claude-opus-4-7", False),
        ("claude-opus-4-10", False),
        ("claude-sonnet-5", False),
        ("claude-fable-5-2", False),
        ("qwen3:8b", True),
        ("second/claude-haiku-4-5", True),
        ("second/claude-opus-5-5", False),
        ("openrouter/anthropic/claude-sonnet-4.5:beta", True),
        ("openrouter/anthropic/claude-opus-4.7", False),
        ("vertex/claude-opus-4-1@20250805", True),
    ],
)
def test_only_some_models_accept_a_temperature(model: str, takes: bool) -> None:
    assert takes_sampling(model) is takes
