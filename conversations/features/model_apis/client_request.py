"""What a client asks, whichever protocol it speaks: messages, tools and wishes in one form.

Content has the blocks of the Messages API, which the archive and the runtime speak.
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

MAX_CHOICES_CHARS = 64_000  # of all that is passed on, as JSON

SYSTEM_ROLES = (SYSTEM, "developer")

NEUTRAL_SAMPLING = {"temperature": 1, "top_p": 1}  # values that ask for nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """``channel`` is the protocol's name, ``before`` what was said up to the last answer and
    ``said`` the pieces that were said since, in its format; of these, ``words`` and ``results``
    (blocks ``tool_result``) are what the person and the client's tools say. ``identity`` is all
    that makes the request the same when it is sent again. ``answer_id`` names the answer that it
    continues, ``echoed`` is what the answer says again, and with ``has_usage`` the stream ends
    with the tokens."""

    channel: str
    model: str
    before: list[dict[str, Any]]
    said: list[dict[str, Any]]
    words: MessageContent
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
    """An error that names the parameter."""
    return Rejected(f"{name}: {reason}", code="bad_choice")


def split_messages(
    messages: Sequence[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What was said before, and what is said now: all that follows the last answer."""
    answers = [place for place, one in enumerate(messages) if one.get("role") == ASSISTANT]
    end = answers[-1] + 1 if answers else 0
    return list(messages[:end]), list(messages[end:])


def split_contents(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One message for each block: programs join what is said without an answer in between."""
    split = []
    for message in messages:
        content = message.get("content")
        parts = [[block] for block in content] if isinstance(content, list) else [content]
        split += [message | {"content": part} for part in parts]
    return split


def read_words(said: Sequence[dict[str, Any]]) -> MessageContent:
    """What the person says, without the results of tools. Raises Rejected for what cannot be
    sent."""
    contents = []
    for message in said:
        content = message.get("content")
        if message.get("role") == TOOL:
            continue
        if isinstance(content, list):
            content = [block for block in content if not is_result(block)]
        contents.append(content)
    return read_content(contents)


def list_said(messages: Sequence[dict[str, Any]]) -> list[str | list[str]]:
    """What the person said, one for all that stands between two answers: its text, with the
    digests of its files where it has some."""
    said: list[str | list[str]] = []
    for is_answer, group in groupby(messages, key=lambda one: one.get("role") == ASSISTANT):
        with suppress(Rejected):  # not sent by us, so it may be anything
            text, files = ("", []) if is_answer else read_words(list(group))
            digests = [sha256(file.data).hexdigest() for file in files]
            said.append([text, *digests] if digests else text)
    return [one for one in said if one]


def is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def read_result_blocks(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The content of a block ``tool_result``, parts of OpenAI's messages as blocks. Raises Rejected
    for what is none."""
    content = result.get("content")
    if content is None:
        return []
    blocks = [text_block(content)] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(
        isinstance(one, dict) and not lacks_text(one) for one in blocks
    ):
        reason = f"The result of {result.get('tool_use_id')} must be a text or a list of blocks."
        raise refused("content", reason)
    return [block_of(one) for one in blocks]


def text_of(content: Any) -> str:
    """The text of a prompt that is a text or a list of blocks. Raises Rejected for another."""
    if isinstance(content, str):
        return content
    blocks = content or []
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise Rejected("Content must be a text or a list of blocks.", code=BAD_MESSAGE)
    return text_of_blocks(blocks)


def join_instructions(system: Any, messages: Sequence[dict[str, Any]]) -> str:
    """A request's instructions: those of its own, and its messages of the system, wherever
    they stand."""
    own = [one.get("content") for one in messages if one.get("role") in SYSTEM_ROLES]
    return "\n\n".join(text for text in map(text_of, [system, *own]) if text.strip())


def require_sampling(name: str, value: float | None, model: str) -> float | None:
    """The value to pass on; None where it asks for nothing. Raises Rejected for a model that
    does not take it."""
    if value is None or value == NEUTRAL_SAMPLING.get(name):
        return None
    if not takes_sampling(model):
        raise refused(name, f"{model} does not support it. Leave it out.")
    return value


def make_choices(max_tokens: int | None, **passed: Any) -> RunChoices:
    """Without those that are None. Raises Rejected for too many."""
    given = {name: value for name, value in passed.items() if value is not None}
    choices = RunChoices(max_tokens=max_tokens, passed=given)
    if len(dump_json(choices.as_json())) > MAX_CHOICES_CHARS:
        raise Rejected(
            f"The parameters for the answer have more than {MAX_CHOICES_CHARS} characters."
        )
    return choices


def require_forced_tool(choices: RunChoices, tools: Container[str]) -> None:
    """Raises Rejected where a call is to be forced of another tool than the client's."""
    choice = choices.passed.get(TOOL_CHOICE, {})
    if choice.get("type") == "tool" and choice["name"] not in tools:
        raise refused(TOOL_CHOICE, f"{choice['name']} is not among the tools of the request.")


def require_tools(choice: dict[str, Any] | None, tools: Sequence[Any]) -> None:
    """Raises Rejected where a call is to be forced of no tool."""
    if choice is not None and choice.get("type") in FORCED and not tools:
        raise refused(TOOL_CHOICE, "Forcing a call needs tools in the request.")
