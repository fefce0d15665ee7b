"""What a client sends and gets: the Messages API's request, message and events."""

from collections.abc import Sequence
from typing import Any, Literal

from ninja import Field, Schema
from pydantic import BaseModel, ConfigDict

from conversations.domain.errors import Rejected
from conversations.domain.formats.contents import BAD_MESSAGE
from conversations.domain.formats.messages_api import split_system, system_messages
from conversations.domain.formats.spoken import Spoken, read_spoken
from conversations.domain.turns import USER, text_of_blocks


class MetadataIn(Schema):
    user_id: str | None = Field(
        None, description="A key of the session, where no header names one."
    )


class MessagesIn(BaseModel):
    """A request of the Messages API. What is not named here and would change the answer is
    refused."""

    # No Schema: that one drops what it has no name for, without a word.

    model_config = ConfigDict(extra="allow")

    model: str = Field(max_length=120)
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int = Field(
        ge=1, description="The longest answer of one model call, within the workspace's limit."
    )
    system: str | list[dict[str, Any]] = Field(
        "", description="The session's instructions from now on."
    )
    tools: list[dict[str, Any]] = Field(
        default_factory=list, description="Tools that the client carries out itself."
    )
    tool_choice: dict[str, Any] | None = Field(
        None, description="Whether the model may or has to call tools."
    )
    stop_sequences: list[str] = Field(
        default_factory=list, max_length=64, description="Texts at which an answer ends."
    )
    temperature: float | None = Field(None, ge=0, le=1, description="For models that take it.")
    top_p: float | None = Field(None, ge=0, le=1, description="For models that take it.")
    top_k: int | None = Field(None, ge=0, description="For models that take it.")
    thinking: dict[str, Any] | None = Field(
        None, description="Whether the model thinks: `adaptive` or `disabled`, without a budget."
    )
    output_config: dict[str, Any] | None = Field(
        None, description="The effort, and the form of the answer."
    )
    stream: bool = False
    metadata: MetadataIn | None = None


class CountIn(Schema):
    """What a client wants counted."""

    model_config = ConfigDict(extra="allow")

    messages: list[dict[str, Any]] = Field(min_length=1)
    system: str | list[dict[str, Any]] = ""
    tools: list[dict[str, Any]] = Field(default_factory=list)


class TokensOut(Schema):
    input_tokens: int


class UsageOut(Schema):
    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int


class MessageOut(Schema):
    """A message of the Messages API."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None = None
    usage: UsageOut


def split_messages(
    messages: Sequence[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What was said before, and what is said now: all that follows the last answer.
    Raises Rejected where that is nothing."""
    answers = [place for place, one in enumerate(messages) if one.get("role") == "assistant"]
    end = answers[-1] + 1 if answers else 0
    if end == len(messages):
        raise Rejected("The last message is the person's.", code="nothing_to_answer")
    for place, one in enumerate(messages[end:], end):
        if one.get("role") != USER:
            reason = "What is said after the last answer has the role user. The system prompt is"
            raise Rejected(f"messages[{place}]: {reason} under `system`.", code=BAD_MESSAGE)
    return list(messages[:end]), list(messages[end:])


def read_results(said: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of tools among what is said."""
    return [block for block in _blocks(said) if block.get("type") == "tool_result"]


def read_words(said: Sequence[dict[str, Any]]) -> Spoken:
    """All else of it. Raises Rejected for what cannot be sent."""
    contents = []
    for message in said:
        content = message.get("content")
        if isinstance(content, list):
            content = [block for block in content if not _is_result(block)]
        contents.append(content)
    return read_spoken(contents)


def _blocks(said: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    lists = [message["content"] for message in said if isinstance(message.get("content"), list)]
    return [block for content in lists for block in content if isinstance(block, dict)]


def _is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def read_instructions(system: Any) -> str:
    """The text of a request's ``system``."""
    blocks, _ = split_system(system_messages(system))
    return text_of_blocks(blocks)
