"""The request that an MCP server makes to the model (sampling), and its answer."""

from collections.abc import Mapping
from typing import Any

from conversations.archive.journal import walk_events
from conversations.domain.errors import NotFound
from conversations.domain.events import Info
from conversations.domain.stream import MessageCompleted, ModelRequest
from conversations.domain.text import dump_json
from conversations.domain.tool_questions import read_question
from conversations.domain.turns import text_of_answer

from .window import MANIFEST_VERSION

SAMPLED = "sampling"  # The kind of the manifest

# Reasons why the model stopped, as the Model Context Protocol names them.
STOP_REASONS = {"max_tokens": "maxTokens", "stop_sequence": "stopSequence"}


def make_sampling_request(prompt: Mapping[str, Any]) -> ModelRequest:
    """Make the request for the ``prompt`` of a tool server's question.

    See :class:`~conversations.domain.tool_questions.ToolQuestion` for the prompt.
    """
    messages = [
        {"role": message["role"], "content": [{"type": "text", "text": message["text"]}]}
        for message in prompt["messages"]
    ]
    system = prompt["system"]
    return ModelRequest(
        model=prompt["model"],
        messages=messages,
        system=[{"type": "text", "text": system}] if system else [],
        max_tokens=prompt["max_tokens"],
        choices={"stop_sequences": prompt["stop"]} if prompt["stop"] else {},
    )


def sampling_manifest(prompt: Mapping[str, Any], *, seq: int) -> str:
    """Return the manifest; ``seq`` is the number of the row in which the server asked."""
    return dump_json(
        {"v": MANIFEST_VERSION, "kind": SAMPLED, "model": prompt["model"], "asked_at": seq}
    )


def rebuild_sampling_request(session_pk: int, manifest: Mapping[str, Any]) -> ModelRequest:
    """Rebuild the request as it was sent."""
    [event] = walk_events(session_pk, start=manifest["asked_at"] - 1, limit=1)
    question = read_question(event.payload.data) if isinstance(event.payload, Info) else None
    if question is None or not question.prompt:
        raise NotFound("The tool server's question no longer exists.")
    return make_sampling_request(question.prompt)


def sampling_result(message: MessageCompleted) -> dict[str, Any]:
    """Return the answer in the protocol's format."""
    return {
        "role": "assistant",
        "content": {"type": "text", "text": text_of_answer(message.blocks)},
        "model": message.model,
        "stopReason": STOP_REASONS.get(message.stop_reason, "endTurn"),
    }
