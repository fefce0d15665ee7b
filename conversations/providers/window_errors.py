"""Reading the model's limit and the prompt's size from an error about a request that is too long.

Every server has its own words for the error. The test of this module has the messages as users
quoted them. llama.cpp also gives the figures in fields.
"""

import re
from typing import NamedTuple

from conversations.domain.text import an_object

# A smaller figure is not a model's window: older versions of vLLM subtract the tokens of the answer
# first and name the rest ("maximum context length is 3 tokens").
MIN_WINDOW_TOKENS = 256

_NUMBER = r"(\d[\d,]*)"
_LIMITS = (
    rf"context (?:size|length|window|limit) (?:is |of )?(?:only )?\(?{_NUMBER}(?: tokens)?\)?",
    rf"context limit: [\d,]+ \+ [\d,]+ > {_NUMBER}",
    rf"context length: {_NUMBER}",
    rf"n_ctx: {_NUMBER}",
    rf"maximum model length of {_NUMBER}",
    rf"maximum prompt length is {_NUMBER}",
    rf"tokens > {_NUMBER} maximum",
    rf"{_NUMBER} maximum context",
    rf"model token limit: {_NUMBER}",
    rf"token count of [\d,]+ exceeds the limit of {_NUMBER}",
    rf"tokens in the prompt cannot exceed {_NUMBER}",
    rf"range of input length should be \[1, {_NUMBER}\]",
    rf"maximum number of tokens allowed \({_NUMBER}\)",
    rf"configured limit of {_NUMBER} tokens",
    rf"must be <= {_NUMBER}\. Given: [\d,]+ `inputs`",
)
_PROMPTS = (
    rf"\b(?:request|input|token count|prompt) \((?:total )?(?:length )?{_NUMBER}",
    rf"\({_NUMBER} (?:in the messages|in your prompt|of text input)",
    rf"{_NUMBER} (?:input tokens|tokens from the input)",
    rf"(?:(?:prompt|request) contains|resulted in|prompt is too long:|keep the first) {_NUMBER}",
    rf"(?:n_keep:|token count of|cannot exceed [\d,]+ - received) {_NUMBER}",
    rf"context limit: {_NUMBER} \+",
    rf"Given: {_NUMBER} `inputs`",
)
LIMITS = [re.compile(words, re.IGNORECASE) for words in _LIMITS]
PROMPTS = [re.compile(words, re.IGNORECASE) for words in _PROMPTS]


class WindowFigures(NamedTuple):
    """The figures in the server's tokens; None: not named."""

    limit: int | None
    prompt: int | None


NOT_NAMED = WindowFigures(None, None)


def read_limit(message: str, body: object = None) -> WindowFigures:
    """Return the figures in the message or the fields of an error.

    ``body`` is the error's JSON."""
    fields = an_object(an_object(body).get("error", body))
    limit = _whole(fields.get("n_ctx")) or _find(LIMITS, message)
    prompt = _whole(fields.get("n_prompt_tokens")) or _find(PROMPTS, message)
    return WindowFigures(
        limit if limit is not None and limit >= MIN_WINDOW_TOKENS else None, prompt
    )


def _whole(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


def _find(patterns: list[re.Pattern[str]], message: str) -> int | None:
    for pattern in patterns:
        match = pattern.search(message)
        if match:
            return int(match[1].replace(",", "")[:12])
    return None
