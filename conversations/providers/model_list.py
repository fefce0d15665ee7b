"""The answers of model lists, as different servers give them."""

from typing import Any

from conversations.domain.stream import ModelInfo
from conversations.providers.model_limits import read_limits


def read_models(body: object) -> list[ModelInfo]:
    """The usable models in a server's list, in its order; [] for other shapes.

    Knows ``{"data": [...]}`` (the Messages API, OpenAI-like servers),
    ``{"models": [...]}`` and a bare list. Retired models are left out.
    """
    entries = find_entries(body)
    return [read_model(entry) for entry in entries if is_usable(entry)]


def find_entries(body: object) -> list[Any]:
    if isinstance(body, dict):
        body = body.get("data") or body.get("models")
    return body if isinstance(body, list) else []


def is_usable(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("id"), str)
        and bool(entry["id"])
        and entry.get("lifecycle") != "retired"
    )


def read_model(entry: dict[str, Any]) -> ModelInfo:
    model_id = entry["id"]
    name = entry.get("display_name") or entry.get("name")
    limits = read_limits(entry, model_id)
    return ModelInfo(
        id=model_id,
        name=name if isinstance(name, str) and name else model_id,
        max_input_tokens=limits.input_tokens,
        max_output_tokens=limits.output_tokens,
    )


def read_next_page(body: object) -> str | None:
    """The id after which the list goes on, if it does."""
    if isinstance(body, dict) and body.get("has_more") is True:
        last = body.get("last_id")
        return last if isinstance(last, str) and last else None
    return None
