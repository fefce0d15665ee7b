"""Rules for ``system`` and ``messages``."""

from typing import Any

from tests.wire.rules.blocks import BLOCKS_BY_ROLE, check_block, check_block_keys, check_text
from tests.wire.rules.errors import refuse
from tests.wire.rules.pairing import check_pairing


def check_system(body: dict[str, Any]) -> None:
    system = body.get("system", "")
    if isinstance(system, str):
        return
    if not isinstance(system, list):
        raise refuse("system: Input should be a valid string or list")
    for number, block in enumerate(system):
        where = f"system.{number}"
        if not isinstance(block, dict) or block.get("type") != "text":
            raise refuse(f"{where}.type: Input should be 'text'")
        check_block_keys(block, where)
        check_text(block, where, "system")


def check_messages(body: dict[str, Any], model: str) -> None:
    messages = body.get("messages")
    if messages is None:
        raise refuse("messages: Field required")
    if not isinstance(messages, list):
        raise refuse("messages: Input should be a valid list")
    if not messages:
        raise refuse("messages: at least one message is required")
    for number, message in enumerate(messages):
        check_message(message, number, model)
    if messages[0]["role"] != "user":
        raise refuse('messages: first message must use the "user" role')
    if messages[-1]["role"] == "assistant":
        raise refuse(
            "This model does not support assistant message prefill."
            " The conversation must end with a user message."
        )
    check_pairing(messages)


def check_message(message: Any, number: int, model: str) -> None:
    where = f"messages.{number}"
    if not isinstance(message, dict):
        raise refuse(f"{where}: Input should be a valid dictionary")
    for key in message:
        if key not in ("role", "content"):
            raise refuse(f"{where}.{key}: Extra inputs are not permitted")
    role = message.get("role")
    if role == "system":
        raise refuse("role 'system' is not supported on this model")
    if role not in BLOCKS_BY_ROLE:
        raise refuse(f"{where}.role: Input should be 'user' or 'assistant'")
    check_content(message.get("content"), role, where, model)


def check_content(content: Any, role: str, where: str, model: str) -> None:
    if isinstance(content, str):
        if not content.strip():
            raise refuse(f"{where}: {role} messages must have non-empty content")
        return
    if not isinstance(content, list):
        raise refuse(f"{where}.content: Input should be a valid list")
    if not content:
        raise refuse(f"{where}: all messages must have non-empty content")
    for number, block in enumerate(content):
        check_block(block, role, f"{where}.content.{number}", model)
