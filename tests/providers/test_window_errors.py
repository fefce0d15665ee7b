"""Errors of requests that are too long, with the figures in messages of real servers."""

import json
from typing import Any

import pytest

from conversations.providers.provider_errors import error_from_event, error_from_status
from conversations.providers.window_errors import read_limit

WORDINGS = [
    # llama.cpp, newer and older
    (
        "request (2831 tokens) exceeds the available context size (2048 tokens), try increasing it",
        2048,
        2831,
    ),
    # vLLM
    (
        "This model's maximum context length is 8192 tokens. However, you requested 8203 tokens"
        " (7691 in the messages, 512 in the completion). Please reduce the length of the messages"
        " or completion.",
        8192,
        7691,
    ),
    (
        "This model's maximum context length is 2048 tokens. However, your request has 2100 input"
        " tokens. Please reduce the length of the input messages. (parameter=input_tokens,"
        " value=2100)",
        2048,
        2100,
    ),
    (
        "This model's maximum context length is 2048 tokens. However, you requested 200 output"
        " tokens and your prompt contains at least 1849 input tokens, for a total of at least 2049"
        " tokens. Please reduce the length of the input prompt or the number of requested output"
        " tokens.",
        2048,
        1849,
    ),
    # An older vLLM named the tokens that the answer leaves as the limit.
    (
        "This model's maximum context length is 3 tokens. However, your request has 8 input tokens."
        " Please reduce the length of the input messages. (parameter=input_tokens, value=8)",
        None,
        8,
    ),
    (
        "The prompt (total length 25938) is too long to fit into the model (context length 4096)."
        " Make sure that `max_model_len` is no smaller than the number of text tokens plus"
        " multimodal tokens.",
        4096,
        25938,
    ),
    (
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make"
        " sure that `max_model_len` is no smaller than the number of text tokens.",
        4096,
        5000,
    ),
    # OpenAI
    (
        "This model's maximum context length is 128000 tokens. However, your messages resulted in"
        " 202868 tokens (202767 in the messages, 101 in the functions). Please reduce the length of"
        " the messages or functions.",
        128_000,
        202_767,
    ),
    (
        "This model's maximum context length is 2049 tokens, however you requested 3643 tokens"
        " (3643 in your prompt; 0 for the completion). Please reduce your prompt; or completion"
        " length.",
        2049,
        3643,
    ),
    (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in"
        " 300000 tokens.",
        272_000,
        300_000,
    ),
    ("Your input exceeds the context window of this model. Please adjust it.", None, None),
    # The Messages API
    ("prompt is too long: 212345 tokens > 200000 maximum", 200_000, 212_345),
    (
        "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease input"
        " length or `max_tokens` and try again",
        200_000,
        199_759,
    ),
    # LM Studio
    (
        "Trying to keep the first 10136 tokens when context the overflows. However, the model is"
        " loaded with context length of only 7866 tokens, which is not enough. Try to load the"
        " model with a larger context length, or provide a shorter input.",
        7866,
        10_136,
    ),
    (
        "The number of tokens to keep from the initial prompt is greater than the context length"
        " (n_keep: 10247 >= n_ctx: 4096). Try to load the model with a larger context length, or"
        " provide a shorter prompt.",
        4096,
        10_247,
    ),
    # Ollama, if it is configured not to cut
    ("the input length exceeds the context length", None, None),
    # SGLang, text-generation-inference, Mistral, OpenRouter, Gemini
    (
        "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
        40_960,
        61_709,
    ),
    (
        "Requested token count exceeds the model's maximum context length of 4096 tokens. You"
        " requested a total of 5200 tokens: 5000 tokens from the input messages and 200 tokens for"
        " the completion.",
        4096,
        5000,
    ),
    (
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 100"
        " `max_new_tokens`",
        4096,
        5000,
    ),
    (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum"
        " context length",
        32_768,
        40_000,
    ),
    (
        "This endpoint's maximum context length is 16384 tokens. However, you requested about 94307"
        " tokens (94307 of text input). Please reduce the length of either one.",
        16_384,
        94_307,
    ),
    (
        "The input token count (1,200,293) exceeds the maximum number of tokens allowed"
        " (1,048,576).",
        1_048_576,
        1_200_293,
    ),
    # xAI, Kimi, Bedrock, Copilot, Cohere, Qwen, Z.ai, Fireworks
    (
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        131_072,
        537_812,
    ),
    ("Invalid request: Your request exceeded model token limit: 131072", 131_072, None),
    ("Input is too long for requested model.", None, None),
    ("prompt token count of 140000 exceeds the limit of 128000", 128_000, 140_000),
    (
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292.",
        4081,
        4292,
    ),
    (
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
        129_024,
        None,
    ),
    ("Prompt exceeds max length", None, None),
    ("The prompt is too long: 8400, model maximum context length: 8191", 8191, 8400),
]


@pytest.mark.parametrize(("message", "limit", "prompt"), WORDINGS)
def test_the_figures_are_read_from_the_message_of_every_server(
    message: str, limit: int | None, prompt: int | None
) -> None:
    assert read_limit(message) == (limit, prompt)


@pytest.mark.parametrize(("message", "limit", "prompt"), WORDINGS)
def test_every_message_is_recognised_as_a_window_error(
    message: str, limit: int | None, prompt: int | None
) -> None:
    said = {"error": {"message": message, "type": "invalid_request_error"}}
    for body in (said, [said], {"detail": message}, json.dumps([said])):
        error = error_from_status(status=400, body=body, headers={})
        assert error.code == "context_window_exceeded"
        assert (error.limit, error.prompt_tokens) == (limit, prompt)


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens: 128000 > 64000, which is the maximum allowed number of output tokens",
        "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 5316852 bytes",
        "image dimensions: 9000 > 8000 maximum",
        "Invalid 'tools': array too long. Expected an array with maximum length 128, got 200.",
    ],
)
def test_an_error_of_another_limit_is_no_window_error(message: str) -> None:
    error = error_from_status(status=400, body={"error": {"message": message}}, headers={})
    assert error.code == "invalid_request"


LLAMA: dict[str, Any] = {
    "code": 400,
    "message": "the request exceeds the available context size, try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 2831,
    "n_ctx": 2048,
}


@pytest.mark.parametrize("body", [{"error": LLAMA}, LLAMA])
def test_the_figures_are_read_from_fields(body: dict[str, Any]) -> None:
    assert read_limit(str(LLAMA["message"]), body) == (2048, 2831)


@pytest.mark.parametrize(
    "body", [None, [], "x", {"error": "x"}, {"error": {"n_ctx": True}}, {"n_ctx": "2048"}]
)
def test_other_bodies_give_no_figures(body: object) -> None:
    assert read_limit("The model is at its limit of 5 requests a minute.", body) == (None, None)


def test_a_window_error_has_the_figures() -> None:
    error = error_from_status(status=400, body={"error": LLAMA}, headers={})
    assert (error.code, error.limit, error.prompt_tokens) == ("context_window_exceeded", 2048, 2831)


@pytest.mark.parametrize("status", [413, 500])
def test_a_window_error_is_recognised_with_any_status(status: int) -> None:
    """Ollama and LM Studio send a server error, which would be retried without a change."""
    body = {"error": {"message": "the input length exceeds the context length"}}
    error = error_from_status(status=status, body=body, headers={})
    assert (error.code, error.transient) == ("context_window_exceeded", False)


def test_a_rate_limit_that_mentions_the_context_stays_a_rate_limit() -> None:
    body = {"error": {"message": "Too many tokens per minute for this context length."}}
    assert error_from_status(status=429, body=body, headers={}).code == "rate_limited"


def test_a_window_error_in_a_stream_is_recognised() -> None:
    """LM Studio has begun the stream before it finds the error."""
    words = "However, the model is loaded with context length of only 4096 tokens."
    error = error_from_event({"error": {"message": words}}, headers={})
    assert (error.code, error.limit) == ("context_window_exceeded", 4096)
