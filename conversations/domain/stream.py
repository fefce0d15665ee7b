"""The interface between the runtime and a provider.

A provider turns one :class:`ModelRequest` into a stream of items, in this order::

    MessageStarted
    (BlockStarted  BlockDelta*  BlockCompleted)*
    MessageCompleted

Blocks are plain dicts exactly as the provider sent them, including unknown keys and thinking
signatures, because the provider requires them back unchanged.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from .text import dump_json, is_encodable, write_json

type Block = dict[str, Any]

STRICT = "strict"  # A key of an answer's format in OpenAI's protocols, not in the Messages API.
SEALED = "extra_content"  # A key of a call in chat completions, which Gemini requires back.


def sealed_of(call: Mapping[str, Any]) -> dict[str, Any]:
    return {SEALED: call[SEALED]} if call.get(SEALED) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens of one model call. None means that a number was not reported.

    ``input_tokens`` is only the uncached part of the prompt. The size of the prompt is the sum of
    the three input numbers.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """The request of one model call, whose values are never changed.

    ``messages``, ``system`` and ``tools`` have the shapes of the Messages API. ``choices`` are
    further keys of its request.
    """

    model: str
    messages: list[dict[str, Any]]
    system: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    max_tokens: int = 8192
    choices: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def messages_json(self) -> str:
        """The messages as JSON.

        The text is cached because it is both sent and described, and may be a megabyte long.
        """
        text = f"[{','.join(map(_write_message, self.messages))}]"
        return text if is_encodable(text) else dump_json(self.messages)


class KnownBlock(dict[str, Any]):
    """A content block that is never changed, whose JSON is cached for use in many requests."""

    @cached_property
    def json(self) -> str:
        return write_json(self)


_HEADS = {role: f'{{"role":"{role}","content":[' for role in ("user", "assistant")}


def _write_message(message: dict[str, Any]) -> str:
    """Return the same as :func:`write_json`, but use the cached JSON of known blocks."""
    head, blocks = _HEADS.get(message["role"]), message["content"]
    if head is None or len(message) != 2 or not isinstance(blocks, list):
        return write_json(message)
    texts = [block.json if isinstance(block, KnownBlock) else write_json(block) for block in blocks]
    return f"{head}{','.join(texts)}]}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStarted:
    """The start of an answer.

    If ``model`` is the name in the request, ``answered_as`` is the model's own name. It is empty
    if that is not known.
    """

    message_id: str
    model: str
    usage: Usage
    answered_as: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStarted:
    """The start of a block. ``block`` is what the provider sent with the start.

    ``kind`` is the block's type: ``text``, ``thinking``, ``tool_use`` or an unknown one.
    """

    index: int
    kind: str
    block: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDelta:
    """The next piece of a block. ``text`` is never empty.

    By the block's kind, it is visible text, thinking, or a piece of a tool call's JSON.
    """

    index: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCompleted:
    index: int
    block: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCompleted:
    """The whole answer.

    ``stop_reason`` is the provider's: ``end_turn``, ``tool_use``, ``max_tokens``,
    ``stop_sequence``, ``pause_turn``, ``refusal``, ``model_context_window_exceeded`` or an unknown
    one. ``answered_as`` is as in :class:`MessageStarted`.
    """

    blocks: list[Block]
    stop_reason: str
    usage: Usage
    model: str
    message_id: str
    stop_details: dict[str, Any] | None = None
    stop_sequence: str | None = None
    answered_as: str = ""


type StreamItem = MessageStarted | BlockStarted | BlockDelta | BlockCompleted | MessageCompleted


# Capabilities that a model may or may not have.
TOOLS, PARALLEL_TOOLS, IMAGES, DOCUMENTS = "tools", "parallel_tools", "images", "documents"
CAPABILITIES = (TOOLS, PARALLEL_TOOLS, IMAGES, DOCUMENTS, "thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model that can be chosen.

    The limits are in tokens. ``is_limit_known`` means that the server or the configuration names
    the limit of the input. ``takes`` has the known values of :data:`CAPABILITIES`; a capability
    that is not known is tried. ``provider`` is the name of the model's provider.
    """

    id: str
    name: str
    max_input_tokens: int
    max_output_tokens: int
    is_limit_known: bool = False
    takes: Mapping[str, bool] = field(default_factory=dict)
    provider: str = ""

    @property
    def short_name(self) -> str:
        """A short form of the name, for places with little room.

        It lacks the owner, and the variant of a name such as ``llama3.1:70b-instruct-q4_K_M``.
        """
        own, colon, tag = self.name.rpartition("/")[2].partition(":")
        own = own.removeprefix("Claude ").removeprefix("claude-")
        return f"{own}{colon}{tag.partition('-')[0]}" or self.name


class Provider(Protocol):
    """A provider that answers model calls. Each instance belongs to one event loop."""

    is_demo: bool

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamItem]:
        """Yield the items of one answer. Closing the iterator ends the request.

        Raises :class:`~conversations.domain.errors.ProviderError`, and no other deliberate error,
        for every failure of the provider, also in the middle of the stream. The provider does not
        retry, because the runtime retries visibly.
        """
        ...

    async def list_models(self) -> list[ModelInfo]:
        """Return the models on offer, newest first. Raises ProviderError."""
        ...

    async def warm_up(self) -> None:
        """Load in advance what the first call would have to load, without sending any request."""
        ...

    async def close(self) -> None: ...
