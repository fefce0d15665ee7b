"""What a client sends and gets: the Messages API's request, message and events."""

from collections.abc import Container, Mapping, Sequence
from typing import Any, Literal

from ninja import Field, Schema
from pydantic import BaseModel, ConfigDict

from conversations.domain.errors import Rejected
from conversations.domain.formats import Spoken, read_spoken
from conversations.domain.formats.contents import BAD_MESSAGE
from conversations.domain.runs import FORCED, TOOL_CHOICE, RunChoices
from conversations.domain.text import dump_json
from conversations.domain.turns import USER, text_of_blocks
from conversations.providers.model_limits import takes_sampling


class MetadataIn(Schema):
    user_id: str | None = Field(None, description="The session's key, if no header gives one.")


class MessagesIn(BaseModel):
    """A request of the Messages API. What is not named here and would change the answer is
    refused."""

    # No Schema: that one drops what it has no name for, without a word.

    model_config = ConfigDict(extra="allow")

    model: str = Field(max_length=120)
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int = Field(
        ge=1,
        description="Maximum length of the answer in one model call, within the workspace's limit.",
    )
    system: str | list[dict[str, Any]] = Field(
        "", description="The session's instructions from now on."
    )
    tools: list[dict[str, Any]] = Field(
        default_factory=list, description="Tools that the client executes itself."
    )
    tool_choice: dict[str, Any] | None = Field(
        None, description="Whether the model may or must call tools."
    )
    stop_sequences: list[str] = Field(
        default_factory=list, max_length=64, description="Text at which the answer ends."
    )
    temperature: float | None = Field(None, ge=0, le=1, description="For models that support it.")
    top_p: float | None = Field(None, ge=0, le=1, description="For models that support it.")
    top_k: int | None = Field(None, ge=0, description="For models that support it.")
    thinking: dict[str, Any] | None = Field(
        None, description="Whether the model thinks: `adaptive` or `disabled`, without a budget."
    )
    output_config: dict[str, Any] | None = Field(
        None, description="The effort, and the format of the answer."
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
        raise Rejected("The last message must have the role user.", code="nothing_to_answer")
    for place, one in enumerate(messages[end:], end):
        if one.get("role") != USER:
            reason = "Messages after the last answer must have the role user. The system prompt is "
            raise Rejected(f"messages[{place}]: {reason} under `system`.", code=BAD_MESSAGE)
    return list(messages[:end]), list(messages[end:])


def read_results(said: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of tools among what is said."""
    lists = [message["content"] for message in said if isinstance(message.get("content"), list)]
    return [block for content in lists for block in content if _is_result(block)]


def read_words(said: Sequence[dict[str, Any]]) -> Spoken:
    """All else of it. Raises Rejected for what cannot be sent."""
    contents = []
    for message in said:
        content = message.get("content")
        if isinstance(content, list):
            content = [block for block in content if not _is_result(block)]
        contents.append(content)
    return read_spoken(contents)


def _is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def read_instructions(system: Any) -> str:
    """The text of a request's ``system``."""
    return system if isinstance(system, str) else text_of_blocks(system or ())


# What a client asks of the answer, beside what it says.

# What a client may send as to how it is done, not what: the server does that its own way.
WITHOUT_EFFECT = (
    *("betas", "cache_control", "context_management", "diagnostics", "service_tier", "speed"),
)

SAMPLING = ("temperature", "top_p", "top_k")

NEUTRAL = {"temperature": 1, "top_p": 1}  # values that ask for nothing

THINKING = ("adaptive", "between_tools", "disabled")

TOOL_CHOICES = ("auto", "any", "tool", "none")

MAX_CHOICES_CHARS = 64_000  # of all that is passed on, as JSON


def read_client_choices(asked: MessagesIn) -> RunChoices:
    """Raises Rejected for what cannot be asked for here, and says why."""
    for name, value in (asked.model_extra or {}).items():
        if value is not None and name not in WITHOUT_EFFECT:
            raise refused(name, "This is not supported here and would have no effect.")
    if not all(one.strip() for one in asked.stop_sequences):
        raise refused("stop_sequences", "Each must contain more than white space.")
    if asked.thinking is not None and asked.thinking.get("type") not in THINKING:
        one_of = ", ".join(THINKING)
        raise refused("thinking", f"Its type must be one of {one_of}; a budget is not supported.")
    passed = {
        "stop_sequences": asked.stop_sequences or None,
        TOOL_CHOICE: _read_tool_choice(asked),
        "thinking": asked.thinking,
        "output_config": asked.output_config,
        **{name: _read_sampling(asked, name) for name in SAMPLING},
    }
    choices = RunChoices(
        max_tokens=asked.max_tokens,
        passed={name: value for name, value in passed.items() if value is not None},
    )
    if len(dump_json(choices.as_json())) > MAX_CHOICES_CHARS:
        raise Rejected(
            f"The parameters for the answer have more than {MAX_CHOICES_CHARS} characters."
        )
    return choices


def refused(name: str, reason: str) -> Rejected:
    return Rejected(f"{name}: {reason}", code="bad_choice")


def require_forced_tool(choices: RunChoices, tools: Container[str]) -> None:
    """Raises Rejected where a call is to be forced of another tool than the client's."""
    choice = choices.passed.get(TOOL_CHOICE, {})
    if choice.get("type") == "tool" and choice["name"] not in tools:
        raise refused(TOOL_CHOICE, f"{choice['name']} is not among the tools of the request.")


def _read_sampling(asked: MessagesIn, name: str) -> float | None:
    value: float | None = getattr(asked, name)
    if value is None or value == NEUTRAL.get(name):
        return None
    if not takes_sampling(asked.model):
        raise refused(name, f"{asked.model} does not support it. Leave it out.")
    return value


def _read_tool_choice(asked: MessagesIn) -> Mapping[str, Any] | None:
    choice = asked.tool_choice
    if choice is None or choice == {"type": "auto"}:
        return None
    kind, name = choice.get("type"), choice.get("name")
    if kind not in TOOL_CHOICES:
        raise refused(TOOL_CHOICE, f"Its type must be one of {', '.join(TOOL_CHOICES)}.")
    if kind in FORCED and not asked.tools:
        raise refused(TOOL_CHOICE, "Forcing a call needs tools in the request.")
    if (kind == "tool") != isinstance(name, str):
        raise refused(TOOL_CHOICE, "It needs a name if its type is tool, and only then.")
    return choice
