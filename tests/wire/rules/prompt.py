"""The parts of a prompt: their order, their size and their cache breakpoints."""

import json
from collections.abc import Iterator
from typing import Any

from tests.wire.rules.errors import refuse

MAX_BREAKPOINTS = 4
CHARACTERS_PER_TOKEN = 4
IMAGE_TOKENS = 1_500
DOCUMENT_TOKENS = 3_000


def blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def iterate_units(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parts of the prompt in the order in which they are cached."""
    for tool in body.get("tools") or []:
        yield "tool", tool
    system = body.get("system") or []
    for block in [{"type": "text", "text": system}] if isinstance(system, str) else system:
        yield "system", block
    for message in body.get("messages") or []:
        for block in blocks_of(message):
            yield message["role"], block


def count_unit(unit: Any) -> int:
    """Return the number of characters that a part of the prompt counts for."""
    if unit.get("type") == "image":
        return IMAGE_TOKENS * CHARACTERS_PER_TOKEN
    if unit.get("type") == "text":
        return len(unit["text"])
    if unit.get("type") == "document" and unit["source"].get("type") == "base64":
        return DOCUMENT_TOKENS * CHARACTERS_PER_TOKEN
    if unit.get("type") == "tool_result" and isinstance(unit.get("content"), list):
        return sum(count_unit(part) for part in unit["content"])
    kept = {key: value for key, value in unit.items() if key != "cache_control"}
    return len(json.dumps(kept, ensure_ascii=False))


def count_tokens(body: dict[str, Any]) -> int:
    characters = sum(count_unit(unit) for _, unit in iterate_units(body))
    return max(1, -(-characters // CHARACTERS_PER_TOKEN))


def check_cache_control(block: dict[str, Any], where: str) -> None:
    control = block.get("cache_control")
    if control is None:
        return
    if not isinstance(control, dict) or control.get("type") != "ephemeral":
        raise refuse(f"{where}.cache_control.type: Input should be 'ephemeral'")
    if set(control) - {"type", "ttl"} or control.get("ttl", "5m") not in ("5m", "1h"):
        raise refuse(f"{where}.cache_control.ttl: Input should be '5m' or '1h'")


def check_breakpoints(body: dict[str, Any]) -> None:
    controls = [
        block["cache_control"]
        for _, block in iterate_units(body)
        if isinstance(block, dict) and block.get("cache_control")
    ]
    if body.get("cache_control"):
        check_cache_control(body, "request")
        controls.append(body["cache_control"])
    if len(controls) > MAX_BREAKPOINTS:
        raise refuse(
            f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided."
            f" Found {len(controls)}."
        )
    lifetimes = [control.get("ttl", "5m") for control in controls]
    if lifetimes != sorted(lifetimes):
        raise refuse("cache_control: a ttl='1h' block must not come after a ttl='5m' block")
