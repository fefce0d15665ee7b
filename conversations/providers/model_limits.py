"""Limits of models whose server does not name them.

The figures for Claude models are from the provider's pages on each model
(platform.claude.com/docs/en/models/<model>/overview, November 2026). The window of
an unknown model is set low, since a window that is too small costs recall, while
one that is too large makes every long session fail.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class ModelLimits(NamedTuple):
    """In tokens."""

    input_tokens: int
    output_tokens: int


UNKNOWN_MODEL = ModelLimits(32_768, 4_096)

# The longest prefix of the id wins.
LIMITS_BY_PREFIX = {
    "claude-": ModelLimits(200_000, 8_192),
    "claude-haiku-4-5": ModelLimits(200_000, 64_000),
    "claude-sonnet-4-5": ModelLimits(200_000, 64_000),
    "claude-opus-4-5": ModelLimits(200_000, 64_000),
    "claude-sonnet-4-6": ModelLimits(1_000_000, 128_000),
    "claude-opus-4-6": ModelLimits(1_000_000, 128_000),
    "claude-opus-4-7": ModelLimits(1_000_000, 128_000),
    "claude-opus-4-8": ModelLimits(1_000_000, 128_000),
    "claude-haiku-5": ModelLimits(1_000_000, 128_000),
    "claude-sonnet-5": ModelLimits(1_000_000, 128_000),
    "claude-opus-5": ModelLimits(1_000_000, 128_000),
    "claude-fable-5": ModelLimits(1_000_000, 128_000),
    "claude-mythos-5": ModelLimits(1_000_000, 128_000),
}

# Where servers put the figures: the Messages API, OpenRouter, vLLM, LM Studio.
INPUT_KEYS = ("max_input_tokens", "context_length", "max_model_len", "max_context_length")
OUTPUT_KEYS = ("max_tokens", "max_output_tokens")


def find_limits(model_id: str) -> ModelLimits:
    """The limits of ``model_id`` by its longest known prefix."""
    known = [prefix for prefix in LIMITS_BY_PREFIX if model_id.startswith(prefix)]
    return LIMITS_BY_PREFIX[max(known, key=len)] if known else UNKNOWN_MODEL


def read_limits(entry: Mapping[str, Any], model_id: str) -> ModelLimits:
    """The limits that a server's list names, else those of the table."""
    known = find_limits(model_id)
    return ModelLimits(
        read_figure(entry, INPUT_KEYS) or known.input_tokens,
        read_figure(entry, OUTPUT_KEYS) or known.output_tokens,
    )


def read_figure(entry: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        value = entry.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
