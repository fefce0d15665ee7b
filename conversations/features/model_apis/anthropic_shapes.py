"""The schemas of the Messages API, and reading its requests."""

from collections.abc import Sequence
from typing import Any, Literal

from ninja import Field, Schema
from pydantic import BaseModel, ConfigDict

from conversations.domain.errors import Rejected
from conversations.domain.formats import ANTHROPIC
from conversations.domain.formats.contents import BAD_MESSAGE
from conversations.domain.runs import TOOL_CHOICE, RunChoices
from conversations.domain.text import dump_json
from conversations.domain.turns import ASSISTANT, SYSTEM, USER
from conversations.providers.model_limits import SAMPLING, takes_sampling

from .client_request import (
    ClientRequest,
    is_result,
    join_instructions,
    make_choices,
    read_person_content,
    refused,
    require_sampling,
    require_tools,
    split_contents,
    split_messages,
)
from .errors import THREAD_UNSUPPORTED

CHANNEL = ANTHROPIC

BUDGET = "enabled"  # The type of thinking with a token budget.


class MetadataIn(Schema):
    user_id: str | None = Field(None, description="The session's key, if no header gives one.")


class MessagesIn(BaseModel):
    """A request of the Messages API.

    Unsupported parameters that would change the answer are refused."""

    # Not a Schema, which would silently drop unknown parameters.

    model_config = ConfigDict(extra="allow")

    model: str = Field(max_length=120)
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int = Field(
        ge=1,
        description="Maximum length of the answer in one model call, within the workspace's limit.",
    )
    system: str | list[dict[str, Any]] | None = Field(
        None, description="The session's instructions from now on."
    )
    tools: list[dict[str, Any]] | None = Field(
        None, description="Tools that the client executes itself."
    )
    tool_choice: dict[str, Any] | None = Field(
        None, description="Whether the model may or must call tools."
    )
    stop_sequences: list[str] | None = Field(
        None, max_length=64, description="Text at which the answer ends."
    )
    temperature: float | None = Field(None, ge=0, le=1, description="For models that support it.")
    top_p: float | None = Field(None, ge=0, le=1, description="For models that support it.")
    top_k: int | None = Field(None, ge=0, description="For models that support it.")
    thinking: dict[str, Any] | None = Field(
        None, description="Whether the model thinks; a budget is for models that support it."
    )
    output_config: dict[str, Any] | None = Field(
        None, description="The effort, and the format of the answer."
    )
    stream: bool | None = False
    metadata: MetadataIn | None = None


class CountIn(Schema):
    """A request to count tokens."""

    model_config = ConfigDict(extra="allow")

    messages: list[dict[str, Any]] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


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


# Parameters that are accepted and ignored: they do not change the answer's content, only how it is
# made, which the server decides itself.
WITHOUT_EFFECT = (
    *("betas", "cache_control", "context_management", "diagnostics", "service_tier", "speed"),
)

THINKING = ("adaptive", "between_tools", "disabled", BUDGET)

TOOL_CHOICES = ("auto", "any", "tool", "none")

BILLING_HEADER = "x-anthropic-billing-header:"

# Error messages in the words of Anthropic's API.
PREFILL = (
    "This model does not support assistant message prefill. The conversation must end with a user"
    " message."
)
NOT_PERMITTED = "Extra inputs are not permitted: this would have no effect here."
NO_BUDGET = (
    '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and'
    ' "output_config.effort" to control thinking behavior.'
)


def read_request(body: MessagesIn) -> ClientRequest:
    """Convert a request of the Messages API. Raise Rejected for unsupported parameters."""
    _check_messages(body.messages)
    conversation = [message for message in body.messages if message["role"] != SYSTEM]
    earlier_messages, new_messages = split_messages(conversation)
    if not new_messages:
        raise Rejected(PREFILL, code="nothing_to_answer")
    choices = _read_choices(body)
    lists = [
        message["content"] for message in new_messages if isinstance(message.get("content"), list)
    ]
    return ClientRequest(
        channel=CHANNEL,
        model=body.model,
        earlier_messages=earlier_messages,
        new_messages=split_contents(new_messages),
        content=read_person_content(new_messages),
        results=[block for content in lists for block in content if is_result(block)],
        choices=choices,
        identity=dump_json([body.messages, choices.as_json()]),
        instructions=join_instructions(_read_system(body.system), body.messages),
        tools=body.tools or [],
        user_key=(body.metadata.user_id if body.metadata else None) or "",
        stream=bool(body.stream),
    )


def _read_system(
    system: str | list[dict[str, Any]] | None,
) -> str | list[dict[str, Any]] | None:
    # Claude Code puts a header with its version before the prompt; leave it out.
    if not isinstance(system, list):
        return system
    return [block for block in system if not str(block.get("text")).startswith(BILLING_HEADER)]


def _check_messages(messages: Sequence[dict[str, Any]]) -> None:
    for place, message in enumerate(messages):
        if message.get("role") not in (USER, ASSISTANT, SYSTEM):
            reason = f"Its role must be {USER}, {ASSISTANT} or {SYSTEM}."
            raise Rejected(f"messages[{place}]: {reason}", code=BAD_MESSAGE)
    if messages[0]["role"] == SYSTEM:
        reason = "The first message must have the role user. The system prompt is under `system`."
        raise Rejected(f"messages[0]: {reason}", code=BAD_MESSAGE)


def _read_choices(body: MessagesIn) -> RunChoices:
    for name, value in (body.model_extra or {}).items():
        if value is not None and name == "thread":
            reason = "Threads are not supported. Send the full conversation without it."
            raise Rejected(f"thread: {reason}", code=THREAD_UNSUPPORTED)
        if value not in (None, [], {}) and name not in WITHOUT_EFFECT:
            raise refused(name, NOT_PERMITTED)
    if not all(sequence.strip() for sequence in body.stop_sequences or []):
        raise refused("stop_sequences", "Each must contain more than white space.")
    return make_choices(
        body.max_tokens,
        stop_sequences=body.stop_sequences or None,
        tool_choice=_read_tool_choice(body),
        thinking=_read_thinking(body),
        output_config=body.output_config,
        **{name: require_sampling(name, getattr(body, name), body.model) for name in SAMPLING},
    )


def _read_thinking(body: MessagesIn) -> dict[str, Any] | None:
    kind = body.thinking.get("type") if body.thinking else None
    if body.thinking is not None and kind not in THINKING:
        raise refused("thinking", f"Its type must be one of {', '.join(THINKING)}.")
    # The models that support a temperature are the same that support a budget.
    if kind == BUDGET and not takes_sampling(body.model):
        raise refused("thinking", NO_BUDGET)
    return body.thinking


def _read_tool_choice(body: MessagesIn) -> dict[str, Any] | None:
    choice = body.tool_choice
    if choice is None or choice == {"type": "auto"}:
        return None
    kind, name = choice.get("type"), choice.get("name")
    if kind not in TOOL_CHOICES:
        raise refused(TOOL_CHOICE, f"Its type must be one of {', '.join(TOOL_CHOICES)}.")
    require_tools(choice, body.tools or [])
    if (kind == "tool") != isinstance(name, str):
        raise refused(TOOL_CHOICE, "It needs a name if its type is tool, and only then.")
    return choice
