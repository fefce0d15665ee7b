"""Rules for a whole request."""

import json
from dataclasses import dataclass
from typing import Any

from tests.wire.rules.errors import ApiError, refuse
from tests.wire.rules.messages import check_messages, check_system
from tests.wire.rules.prompt import check_breakpoints, count_tokens
from tests.wire.rules.tools import check_tools

MAX_REQUEST_BYTES = 32 * 1024 * 1024
SAMPLING = ("temperature", "top_p", "top_k")
REQUEST_KEYS = frozenset(
    (
        "model",
        "max_tokens",
        "messages",
        "system",
        "tools",
        "tool_choice",
        "stream",
        "stop_sequences",
        "metadata",
        "thinking",
        "output_config",
        "cache_control",
        "container",
        "diagnostics",
        "inference_geo",
        "service_tier",
        "speed",
    )
)
THINKING_TYPES = ("adaptive", "disabled", "between_tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """A model that the server offers. Limits are in tokens.

    ``too_long`` is the message that refuses a prompt above the limit. The model counts
    ``factor`` tokens where :func:`count_tokens` counts one. ``lists_limits`` says whether the
    list of models shows the limits.
    """

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int = 1_000_000
    max_tokens: int = 128_000
    takes_sampling: bool = False
    too_long: str = "prompt is too long: {tokens} tokens > {limit} maximum"
    factor: float = 1.0
    lists_limits: bool = True


def check_request(body: Any, models: dict[str, ModelRow], *, needs_output: bool = True) -> ModelRow:
    """Check a request and return its model. Raise ApiError if the API would refuse it."""
    if not isinstance(body, dict):
        raise refuse("The request body is not valid JSON object")
    model = check_model(body, models)
    check_keys(body, model)
    if needs_output:
        check_max_tokens(body, model)
    check_tools(body)
    check_system(body)
    check_messages(body, model.id)
    check_breakpoints(body)
    check_options(body, model)
    check_size(body, model)
    return model


def check_keys(body: dict[str, Any], model: ModelRow) -> None:
    for key in SAMPLING:
        if key in body and not model.takes_sampling:
            raise refuse(f"{key}: `{key}` is not supported on this model.")
    for key in body:
        if key not in REQUEST_KEYS and key not in SAMPLING:
            raise refuse(f"{key}: Extra inputs are not permitted")


def check_model(body: dict[str, Any], models: dict[str, ModelRow]) -> ModelRow:
    name = body.get("model")
    if name is None:
        raise refuse("model: Field required")
    if not isinstance(name, str):
        raise refuse("model: Input should be a valid string")
    if name not in models:
        raise ApiError(404, "not_found_error", f"model: {name}")
    return models[name]


def check_max_tokens(body: dict[str, Any], model: ModelRow) -> None:
    limit = body.get("max_tokens")
    if limit is None:
        raise refuse("max_tokens: Field required")
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise refuse("max_tokens: Input should be a valid integer")
    if limit < (1 if body.get("stream") else 0):
        raise refuse("max_tokens: Input should be greater than or equal to 1")
    if limit > model.max_tokens:
        raise refuse(
            f"max_tokens: {limit} > {model.max_tokens}, which is the maximum allowed number of"
            f" output tokens for {model.id}"
        )


def check_options(body: dict[str, Any], model: ModelRow) -> None:
    if not isinstance(body.get("stream", False), bool):
        raise refuse("stream: Input should be a valid boolean")
    thinking = body.get("thinking")
    # Only the models that accept a temperature have a budget of thinking tokens.
    types = (*THINKING_TYPES, *(("enabled",) if model.takes_sampling else ()))
    if thinking is not None and (
        not isinstance(thinking, dict) or thinking.get("type") not in types
    ):
        raise refuse("thinking.type: Input should be 'adaptive', 'between_tools' or 'disabled'")
    if thinking is not None and thinking["type"] == "enabled":
        check_budget(thinking.get("budget_tokens"), body.get("max_tokens"))
    if "tool_choice" in body and not body.get("tools"):
        raise refuse("tool_choice: tool_choice may only be specified while providing tools")
    check_tool_choice(body)
    for key in (body.get("output_config") or {}).get("format") or ():
        if key not in ("type", "schema"):
            raise refuse(f"output_config.format.{key}: Extra inputs are not permitted")
    for sequence in body.get("stop_sequences") or []:
        if not isinstance(sequence, str) or not sequence.strip():
            raise refuse("stop_sequences: each stop sequence must contain non-whitespace")


def check_budget(budget: Any, limit: int | None) -> None:
    if not isinstance(budget, int) or budget < 1024:
        raise refuse(
            "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
        )
    if limit is not None and budget >= limit:
        raise refuse("`max_tokens` must be greater than `thinking.budget_tokens`.")


def check_tool_choice(body: dict[str, Any]) -> None:
    choice = body.get("tool_choice") or {}
    names = {tool["name"] for tool in body.get("tools") or []}
    if choice.get("type") == "tool" and choice.get("name") not in names:
        raise refuse(f"Tool '{choice.get('name')}' not found in provided tools")


def check_size(body: dict[str, Any], model: ModelRow) -> None:
    if len(json.dumps(body, ensure_ascii=False).encode()) > MAX_REQUEST_BYTES:
        raise ApiError(413, "request_too_large", "Request exceeds the maximum size")
    tokens = int(count_tokens(body) * model.factor)
    if tokens > model.max_input_tokens:
        raise refuse(model.too_long.format(tokens=tokens, limit=model.max_input_tokens))
