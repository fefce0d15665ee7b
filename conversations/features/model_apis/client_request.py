"""A client's request in one form for all protocols: messages, tools and parameters.

Content has the blocks of the Messages API, which the archive and the runtime use.
"""

from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from typing import Any

from conversations.domain.errors import Rejected
from conversations.domain.formats import MessageContent, read_content
from conversations.domain.formats.contents import BAD_MESSAGE, lacks_text, text_block
from conversations.domain.formats.openai_chat import block_of
from conversations.domain.runs import FORCED, TOOL_CHOICE, RunChoices
from conversations.domain.text import dump_json
from conversations.domain.turns import ASSISTANT, SYSTEM, TOOL, text_of_blocks
from conversations.providers.model_limits import takes_sampling

MAX_CHOICES_CHARS = 64_000  # Of all choices as JSON.

SYSTEM_ROLES = (SYSTEM, "developer")

NEUTRAL_SAMPLING = {"temperature": 1, "top_p": 1}  # Default values, which are not passed on.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """A client's request.

    ``channel`` is the protocol's name. ``earlier_messages`` are those up to the last answer and
    ``new_messages`` those after it, one for each block, in the protocol's format. Of the new
    messages, ``content`` is the person's content, and ``results`` are the ``tool_result`` blocks
    from the client's tools.
    ``identity`` is a text that is equal if the same request is sent again. ``answer_id`` is the id
    of the answer that the request continues. ``echoed`` has the parameters that the answer
    repeats. If ``has_usage``, the stream ends with the token counts."""

    channel: str
    model: str
    earlier_messages: list[dict[str, Any]]
    new_messages: list[dict[str, Any]]
    content: MessageContent
    choices: RunChoices
    identity: str
    results: list[dict[str, Any]] = field(default_factory=list)
    instructions: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    user_key: str = ""
    answer_id: str = ""
    stream: bool = False
    has_usage: bool = False
    echoed: dict[str, Any] = field(default_factory=dict)


def refused(name: str, reason: str) -> Rejected:
    """Return an error that names the parameter."""
    return Rejected(f"{name}: {reason}", code="bad_choice")


def split_messages(
    messages: Sequence[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split messages into those up to the last answer and those after it."""
    answers = [place for place, message in enumerate(messages) if message.get("role") == ASSISTANT]
    end = answers[-1] + 1 if answers else 0
    return list(messages[:end]), list(messages[end:])


def split_contents(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Split each message into one for each block.

    Programs join consecutive messages that have no answer between them."""
    split = []
    for message in messages:
        content = message.get("content")
        parts = [[block] for block in content] if isinstance(content, list) else [content]
        split += [message | {"content": part} for part in parts]
    return split


def read_person_content(messages: Sequence[dict[str, Any]]) -> MessageContent:
    """Return the person's content without tool results. Raise Rejected for invalid content."""
    contents = []
    for message in messages:
        content = message.get("content")
        if message.get("role") == TOOL:
            continue
        if isinstance(content, list):
            content = [block for block in content if not is_result(block)]
        contents.append(content)
    return read_content(contents)


def list_person_messages(messages: Sequence[dict[str, Any]]) -> list[str | list[str]]:
    """Return the person's messages, with all messages between two answers as one item.

    An item is a text, or a list of the text and the digests of the files if there are any."""
    items: list[str | list[str]] = []
    for is_answer, group in groupby(messages, key=lambda message: message.get("role") == ASSISTANT):
        with suppress(Rejected):  # earlier messages may have any content
            if not is_answer:
                content = read_person_content(list(group))
                digests = [sha256(file.data).hexdigest() for file in content.files]
                items.append([content.text, *digests] if digests else content.text)
    return [message for message in items if message]


def is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def read_result_blocks(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the content of a ``tool_result`` block as blocks, also if it has OpenAI's parts.

    Raise Rejected if it is neither a text nor a list of blocks."""
    content = result.get("content")
    if content is None:
        return []
    blocks = [text_block(content)] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(
        isinstance(block, dict) and not lacks_text(block) for block in blocks
    ):
        reason = f"The result of {result.get('tool_use_id')} must be a text or a list of blocks."
        raise refused("content", reason)
    return [block_of(block) for block in blocks]


def text_of(content: Any) -> str:
    """Return the text of a prompt. Raise Rejected if it is neither a text nor a list of blocks."""
    if isinstance(content, str):
        return content
    blocks = content or []
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise Rejected("Content must be a text or a list of blocks.", code=BAD_MESSAGE)
    return text_of_blocks(blocks)


def join_instructions(system: Any, messages: Sequence[dict[str, Any]]) -> str:
    """Return a request's instructions: its system prompt and all its system messages, joined."""
    system_messages = [
        message.get("content") for message in messages if message.get("role") in SYSTEM_ROLES
    ]
    return "\n\n".join(text for text in map(text_of, [system, *system_messages]) if text.strip())


def require_sampling(name: str, value: float | None, model: str) -> float | None:
    """Return the value to pass on, or None for the default value.

    Raise Rejected if the model does not support the parameter."""
    if value is None or value == NEUTRAL_SAMPLING.get(name):
        return None
    if not takes_sampling(model):
        raise refused(name, f"{model} does not support it. Leave it out.")
    return value


def make_choices(max_tokens: int | None, **passed: Any) -> RunChoices:
    """Return the choices without values of None. Raise Rejected if they are too long."""
    set_parameters = {name: value for name, value in passed.items() if value is not None}
    choices = RunChoices(max_tokens=max_tokens, passed=set_parameters)
    if len(dump_json(choices.as_json())) > MAX_CHOICES_CHARS:
        raise Rejected(
            f"The parameters for the answer have more than {MAX_CHOICES_CHARS} characters."
        )
    return choices


def require_forced_tool(choices: RunChoices, tools: Container[str]) -> None:
    """Raise Rejected if the choices force a call of a tool that the client does not have."""
    choice = choices.passed.get(TOOL_CHOICE, {})
    if choice.get("type") == "tool" and choice["name"] not in tools:
        raise refused(TOOL_CHOICE, f"{choice['name']} is not among the tools of the request.")


def require_tools(choice: dict[str, Any] | None, tools: Sequence[Any]) -> None:
    """Raise Rejected if the choice forces a tool call but the request has no tools."""
    if choice is not None and choice.get("type") in FORCED and not tools:
        raise refused(TOOL_CHOICE, "Forcing a call needs tools in the request.")
