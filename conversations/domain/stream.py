"""What passes between the runtime and a provider.

A provider turns one :class:`ModelRequest` into a stream of items, in this order::

    MessageStarted
    (BlockStarted  BlockDelta*  BlockCompleted)*
    MessageCompleted

Blocks are plain dicts exactly as the provider sent them (unknown keys and
thinking signatures included), since the provider wants them back unchanged.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from .text import dump_json, is_encodable, write_json

type Block = dict[str, Any]

STRICT = "strict"  # Of an answer's format: OpenAI's protocols have it, the Messages API does not
SEALED = "extra_content"  # Of a call in chat completions: Gemini wants it back from its own model


def sealed_of(call: Mapping[str, Any]) -> dict[str, Any]:
    return {SEALED: call[SEALED]} if call.get(SEALED) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one model call. ``input_tokens`` is the uncached rest only; the
    prompt's size is the sum of the three input figures. None: not reported."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One model call. ``messages``, ``system`` and ``tools`` have the shapes of
    the Messages API; ``choices`` are further keys of its request. Nobody changes them."""

    model: str
    messages: list[dict[str, Any]]
    system: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    max_tokens: int = 8192
    choices: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def messages_json(self) -> str:
        """Written once: it is both sent and described, and may be a megabyte long."""
        text = f"[{','.join(map(_write_message, self.messages))}]"
        return text if is_encodable(text) else dump_json(self.messages)


class KnownBlock(dict[str, Any]):
    """A content block that nobody changes, and that many requests have."""

    @cached_property
    def json(self) -> str:
        return write_json(self)


_HEADS = {role: f'{{"role":"{role}","content":[' for role in ("user", "assistant")}


def _write_message(message: dict[str, Any]) -> str:
    """The same as :func:`write_json`, with what is known."""
    head, blocks = _HEADS.get(message["role"]), message["content"]
    if head is None or len(message) != 2 or not isinstance(blocks, list):
        return write_json(message)
    texts = [one.json if isinstance(one, KnownBlock) else write_json(one) for one in blocks]
    return f"{head}{','.join(texts)}]}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStarted:
    """``answered_as`` is the model by its own name, where ``model`` is the one it was asked by;
    empty where that is not known."""

    message_id: str
    model: str
    usage: Usage
    answered_as: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStarted:
    """``kind`` is the block's type: ``text``, ``thinking``, ``tool_use`` or one
    that this version does not know. ``block`` is what the provider sent with it."""

    index: int
    kind: str
    block: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDelta:
    """More of a block: ``text`` is visible text, thinking, or a piece of a tool
    call's JSON, by the block's kind. Never empty."""

    index: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCompleted:
    index: int
    block: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCompleted:
    """The whole answer. ``stop_reason`` is the provider's word (``end_turn``,
    ``tool_use``, ``max_tokens``, ``stop_sequence``, ``pause_turn``, ``refusal``,
    ``model_context_window_exceeded`` or one still unknown), ``answered_as`` as above."""

    blocks: list[Block]
    stop_reason: str
    usage: Usage
    model: str
    message_id: str
    stop_details: dict[str, Any] | None = None
    stop_sequence: str | None = None
    answered_as: str = ""


type StreamItem = MessageStarted | BlockStarted | BlockDelta | BlockCompleted | MessageCompleted


# What a model may be able to do.
TOOLS, PARALLEL_TOOLS, IMAGES, DOCUMENTS = "tools", "parallel_tools", "images", "documents"
CAPABILITIES = (TOOLS, PARALLEL_TOOLS, IMAGES, DOCUMENTS, "thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model that can be chosen. Limits are in tokens; ``is_limit_known``: the server or the
    configuration names that of the input. ``takes`` is what is known of :data:`CAPABILITIES`;
    what it does not say is tried. ``provider`` names where it is."""

    id: str
    name: str
    max_input_tokens: int
    max_output_tokens: int
    is_limit_known: bool = False
    takes: Mapping[str, bool] = field(default_factory=dict)
    provider: str = ""

    @property
    def short_name(self) -> str:
        """For where there is room for a few letters: without whose it is, and how it is packed
        (``llama3.1:70b-instruct-q4_K_M``)."""
        own, colon, tag = self.name.rpartition("/")[2].partition(":")
        own = own.removeprefix("Claude ").removeprefix("claude-")
        return f"{own}{colon}{tag.partition('-')[0]}" or self.name


class Provider(Protocol):
    """Answers model calls. One instance belongs to one event loop."""

    is_demo: bool

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamItem]:
        """Yield the items of one answer; closing the iterator ends the request. Raises
        :class:`~conversations.domain.errors.ProviderError` (nothing else on purpose) for
        every way in which the provider fails, in mid-stream too. Never retries by itself: the
        runtime does, visibly."""
        ...

    async def list_models(self) -> list[ModelInfo]:
        """The models on offer, newest first; raises ProviderError."""
        ...

    async def warm_up(self) -> None:
        """Load what the first call would wait for; asks nobody anything."""
        ...

    async def close(self) -> None: ...
