"""Rules for content blocks, each by itself."""

import base64
import hashlib
import re
from collections.abc import Callable
from typing import Any

from tests.wire.rules.documents import check_document
from tests.wire.rules.errors import refuse
from tests.wire.rules.images import check_image
from tests.wire.rules.prompt import check_cache_control
from tests.wire.rules.tools import TOOL_NAME

TOOL_USE_ID = re.compile(r"[a-zA-Z0-9_-]+")
BLOCK_KEYS = {
    "text": {"text", "cache_control", "citations"},
    "image": {"source", "cache_control"},
    "document": {"source", "title", "context", "citations", "cache_control"},
    "search_result": {"source", "title", "content", "citations", "cache_control"},
    "tool_result": {"tool_use_id", "content", "is_error", "cache_control"},
    "tool_use": {"id", "name", "input", "cache_control", "caller"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
    "future_block": {"payload"},  # the unknown block that this server sends
}
BLOCKS_BY_ROLE = {
    "user": ("text", "image", "document", "search_result", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use", "future_block"),
}
RESULT_BLOCKS = ("text", "image", "document", "search_result")


def sign_thinking(text: str, model: str) -> str:
    """Return this server's signature of a thinking text, which is valid for one model."""
    digest = hashlib.sha256(f"wire-signature\0{model}\0{text}".encode("utf-8", "replace")).digest()
    return base64.b64encode(digest * 3).decode()


def check_block(block: Any, role: str, where: str, model: str) -> None:
    if not isinstance(block, dict):
        raise refuse(f"{where}: Input should be a valid dictionary")
    kind = block.get("type")
    if kind is None:
        raise refuse(f"{where}.type: Field required")
    if kind not in BLOCKS_BY_ROLE[role]:
        raise refuse(
            f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected"
            f" tags: {', '.join(repr(tag) for tag in BLOCKS_BY_ROLE[role])}"
        )
    check_block_keys(block, where)
    if kind == "thinking":
        check_thinking(block, where, model)
    else:
        BLOCK_CHECKS[kind](block, where)


def check_block_keys(block: dict[str, Any], where: str) -> None:
    kind = block["type"]
    for key in block:
        if key != "type" and key not in BLOCK_KEYS[kind]:
            raise refuse(f"{where}.{kind}.{key}: Extra inputs are not permitted")
    check_cache_control(block, f"{where}.{kind}")


def check_text_block(block: dict[str, Any], where: str) -> None:
    check_text(block, where, "messages")


def check_text(block: dict[str, Any], where: str, part: str) -> None:
    text = block.get("text")
    if not isinstance(text, str):
        raise refuse(f"{where}.text.text: Field required")
    if not text:
        raise refuse(f"{part}: text content blocks must be non-empty")
    if not text.strip():
        raise refuse(f"{part}: text content blocks must contain non-whitespace text")


def check_thinking(block: dict[str, Any], where: str, model: str) -> None:
    text, signature = block.get("thinking"), block.get("signature")
    if not isinstance(text, str):
        raise refuse(f"{where}.thinking.thinking: Field required")
    if not isinstance(signature, str):
        raise refuse(f"{where}.thinking.signature: Field required")
    if signature != sign_thinking(text, model):
        raise refuse(f"{where}: Invalid `signature` in `thinking` block")


def check_redacted(block: dict[str, Any], where: str) -> None:
    if not isinstance(block.get("data"), str):
        raise refuse(f"{where}.redacted_thinking.data: Field required")


def check_tool_use(block: dict[str, Any], where: str) -> None:
    if not isinstance(block.get("id"), str) or not TOOL_USE_ID.fullmatch(block["id"]):
        raise refuse(f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if not isinstance(block.get("name"), str) or not TOOL_NAME.fullmatch(block["name"]):
        raise refuse(
            f"{where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        )
    if not isinstance(block.get("input"), dict):
        raise refuse(f"{where}.tool_use.input: Input should be a valid dictionary")


def check_tool_result(block: dict[str, Any], where: str) -> None:
    if not isinstance(block.get("tool_use_id"), str):
        raise refuse(f"{where}.tool_result.tool_use_id: Field required")
    if not isinstance(block.get("is_error", False), bool):
        raise refuse(f"{where}.tool_result.is_error: Input should be a valid boolean")
    content = block.get("content", "")
    if block.get("is_error") and not content:
        raise refuse(f"{where}.tool_result: content cannot be empty if `is_error` is true")
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise refuse(f"{where}.tool_result.content: Input should be a valid list")
    for number, part in enumerate(content):
        if block.get("is_error") and isinstance(part, dict) and part.get("type") != "text":
            raise refuse(
                f"{where}.tool_result: all content must be type `text` if `is_error` is true"
            )
        check_result_part(part, f"{where}.tool_result.content.{number}")


def check_result_part(part: Any, where: str) -> None:
    if not isinstance(part, dict) or part.get("type") not in RESULT_BLOCKS:
        raise refuse(f"{where}: Input tag does not match any of the expected tags")
    check_block_keys(part, where)
    BLOCK_CHECKS[part["type"]](part, where)


def check_search_result(block: dict[str, Any], where: str) -> None:
    for key in ("source", "title", "content"):
        if key not in block:
            raise refuse(f"{where}.search_result.{key}: Field required")


BLOCK_CHECKS: dict[str, Callable[[dict[str, Any], str], None]] = {
    "text": check_text_block,
    "image": check_image,
    "document": check_document,
    "search_result": check_search_result,
    "tool_use": check_tool_use,
    "tool_result": check_tool_result,
    "redacted_thinking": check_redacted,
    "future_block": lambda block, where: None,
}
