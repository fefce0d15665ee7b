"""From a provider's blocks to the turn and the rows of an answer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from conversations.domain.events import AssistantText, Payload, ToolCallStarted
from conversations.domain.stream import Block, MessageCompleted
from conversations.domain.text import dump_json, estimate_tokens, storable
from conversations.domain.turns import NewTurn, text_of_answer


@dataclass(slots=True)
class _TextRow:
    """One row in the making: thinking, then text, up to the next tool call."""

    thinking: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    thinking_ms: int = 0

    @property
    def text(self) -> str:
        return storable("".join(self.texts))


def make_turn(message: MessageCompleted) -> NewTurn:
    """The turn of a complete answer; its blocks exactly as they were received."""
    content = storable(text_of_answer(message.blocks))
    return NewTurn(
        role="assistant",
        content=content,
        blocks=dump_json(message.blocks),
        tool_calls=dump_json(calls) if (calls := tool_calls_of(message.blocks)) else None,
        token_count=message.usage.output_tokens or estimate_tokens(content),
        stop_reason=message.stop_reason[:64],
        metadata=dump_json({"model": message.model, "message_id": message.message_id}),
    )


def make_payloads(
    message: MessageCompleted, *, thinking_ms: Mapping[int, int], calls: Sequence[UUID]
) -> list[Payload]:
    """The rows of a complete answer. ``thinking_ms`` is by block index, ``calls`` are
    the uuids of its calls' records, in order."""
    payloads: list[Payload] = []
    uuids = iter(calls)
    for item in _pieces(message.blocks, thinking_ms):
        if not isinstance(item, _TextRow):
            payloads.append(_started(item, next(uuids)))
            continue
        thinking = storable("\n\n".join(item.thinking).strip())
        if item.text.strip() or thinking:
            payloads.append(
                AssistantText(
                    text=item.text,
                    thinking=thinking,
                    thinking_ms=item.thinking_ms or None,
                    model=message.model,
                )
            )
    return payloads


def _pieces(blocks: Sequence[Block], thinking_ms: Mapping[int, int]) -> Iterator[_TextRow | Block]:
    """Texts and tool calls in order; thinking opens a row of text."""
    row = _TextRow()
    for index, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "text":
            row.texts.append(str(block.get("text", "")))
        elif kind == "thinking":
            if row.texts:
                yield row
                row = _TextRow()
            row.thinking.append(str(block.get("thinking", "")))
            row.thinking_ms += thinking_ms.get(index, 0)
        elif kind == "tool_use":
            yield row
            yield block
            row = _TextRow()
    yield row


def _started(block: Block, call: UUID) -> ToolCallStarted:
    return ToolCallStarted(
        call=str(call),
        call_id=storable(str(block.get("id", ""))),
        name=storable(str(block.get("name") or "tool")),
        arguments=block.get("input"),
    )


def tool_calls_of(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if block.get("type") == "tool_use"]
