"""A scripted model that needs no key, for trying the product out.

It streams like a real one, with blocks of the same shapes, says in every answer
what it is, and answers the same words with the same text (see ``demo_script``).
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Iterator
from itertools import count
from typing import Any, NamedTuple

from conversations.domain.errors import ProviderError
from conversations.domain.stream import (
    Block,
    BlockCompleted,
    BlockDelta,
    BlockStarted,
    MessageCompleted,
    MessageStarted,
    ModelInfo,
    ModelRequest,
    StreamItem,
    Usage,
)
from conversations.domain.windows import TASK, is_added
from conversations.providers.demo_script import (
    LABEL,
    NO_TOOL,
    choose_script,
    find_keyword,
    make_summary,
    make_tool_answer,
)

from .demo_script import choose_call, find_call_word

# Where an answer of the demo model ends early, as a real one's would.


CHARACTERS_PER_TOKEN = 4


class Cut(NamedTuple):
    """The blocks that are left, why, and at which text."""

    blocks: list[Block]
    stop_reason: str
    stop_sequence: str | None = None


def cut_answer(blocks: list[Block], request: ModelRequest) -> Cut:
    """``stop_reason`` is empty where nothing is cut."""
    found = _cut_at(blocks, request.choices.get("stop_sequences") or ())
    return _cut_after(found, request.max_tokens * CHARACTERS_PER_TOKEN)


def _cut_at(blocks: list[Block], sequences: Any) -> Cut:
    for place, block in enumerate(blocks):
        text = block.get("text", "")
        if found := [one for one in sequences if one in text]:
            first = min(found, key=text.index)
            return Cut(_until(blocks, place, text.index(first)), "stop_sequence", first)
    return Cut(blocks, "")


def _cut_after(cut: Cut, most: int) -> Cut:
    for place, block in enumerate(cut.blocks):
        size = len(block.get("text", "")) + len(block.get("thinking", ""))
        if size > most:
            return Cut(_until(cut.blocks, place, most), "max_tokens")
        most -= size
    return cut


def _until(blocks: list[Block], place: int, length: int) -> list[Block]:
    """Those before, and the beginning of that one if it is a text."""
    text = blocks[place].get("text", "")[:length]
    return [*blocks[:place], *([{**blocks[place], "text": text}] if text else [])]


CHUNK = 4
"""Characters in a delta: about a token."""
DEFAULT_DELAY = 0.02
"""Seconds between deltas: about 50 tokens a second."""
DEMO_MODEL = ModelInfo(
    id="demo", name="Demo model", max_input_tokens=200_000, max_output_tokens=8_192
)


class DemoProvider:
    """Answers by script. ``delay`` is the pause between deltas in seconds."""

    name = "demo"
    is_demo = True

    def __init__(self, *, delay: float = DEFAULT_DELAY) -> None:
        self._delay = delay
        self._calls = count(1)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamItem]:
        """See :meth:`conversations.domain.stream.Provider.stream`."""
        if is_asked_to_fail(request):
            raise ProviderError(
                "The demo provider pretends to be overloaded.", code="overloaded", transient=True
            )
        answer = DemoAnswer(request, number=next(self._calls))
        for item in answer.make_items():
            if isinstance(item, BlockDelta):
                await asyncio.sleep(self._delay)
            yield item

    async def list_models(self) -> list[ModelInfo]:
        return [DEMO_MODEL]

    async def close(self) -> None:
        return None


class DemoAnswer:
    """One answer: the blocks that the script wants, and the items they make."""

    def __init__(self, request: ModelRequest, *, number: int) -> None:
        self._request = request
        self._digest = digest_request(request, number)
        self._cut = cut_answer(self._make_blocks(), request)
        self._blocks = self._cut.blocks

    def make_items(self) -> Iterator[StreamItem]:
        usage = Usage(input_tokens=estimate_tokens(self._request.messages), output_tokens=1)
        yield MessageStarted(message_id=self._message_id, model=DEMO_MODEL.id, usage=usage)
        for index, block in enumerate(self._blocks):
            yield from make_block_items(index, block)
        yield self._complete(usage)

    @property
    def _message_id(self) -> str:
        return f"msg_demo_{self._digest}"

    def _make_blocks(self) -> list[Block]:
        if is_summary_request(self._request):
            return [make_text(make_summary(read_last_text(self._request)))]
        results = read_tool_results(self._request)
        if results:
            return [make_text(make_tool_answer(results))]
        text = read_last_text(self._request)
        call = choose_call(text, self._request.tools)
        if call is not None:
            return [make_text(f"{LABEL} I call `{call[0]}`."), self._make_call(*call)]
        if find_call_word(text):
            return [make_text(NO_TOOL)]
        script = choose_script(text)
        thinking = [make_thinking(script.thinking)] if script.thinking else []
        return [*thinking, make_text(script.text)]

    def _make_call(self, name: str, arguments: dict[str, Any]) -> Block:
        call_id = f"toolu_demo_{self._digest}"
        return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}

    def _complete(self, usage: Usage) -> MessageCompleted:
        calls = any(block["type"] == "tool_use" for block in self._blocks)
        return MessageCompleted(
            blocks=self._blocks,
            stop_reason=self._cut.stop_reason or ("tool_use" if calls else "end_turn"),
            stop_sequence=self._cut.stop_sequence,
            usage=Usage(
                input_tokens=usage.input_tokens, output_tokens=estimate_tokens(self._blocks)
            ),
            model=DEMO_MODEL.id,
            message_id=self._message_id,
        )


def make_text(text: str) -> Block:
    return {"type": "text", "text": text}


def make_thinking(text: str) -> Block:
    return {"type": "thinking", "thinking": text, "signature": "demo"}


def make_block_items(index: int, block: Block) -> Iterator[StreamItem]:
    """A block's start, its deltas and its end, as the API would stream it."""
    kind = block["type"]
    key = "input" if kind == "tool_use" else kind
    empty: Any = {} if kind == "tool_use" else ""
    text = json.dumps(block["input"]) if kind == "tool_use" else block[key]
    start = {**block, key: empty} | ({"signature": ""} if kind == "thinking" else {})
    yield BlockStarted(index=index, kind=kind, block=start)
    for at in range(0, len(text), CHUNK):
        yield BlockDelta(index=index, kind=kind, text=text[at : at + CHUNK])
    yield BlockCompleted(index=index, block=block)


def digest_request(request: ModelRequest, number: int) -> str:
    """Tells one answer of a session from the others; the same on every machine."""
    text = json.dumps([number, request.messages[-8:]], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def estimate_tokens(blocks: list[Block]) -> int:
    return len(json.dumps(blocks, ensure_ascii=False, default=str)) // CHARACTERS_PER_TOKEN


def is_asked_to_fail(request: ModelRequest) -> bool:
    return find_keyword(read_last_text(request), {"fail"}) is not None


def is_summary_request(request: ModelRequest) -> bool:
    return any(str(block.get("text", "")).startswith(TASK) for block in request.system)


def read_blocks(message: dict[str, Any]) -> list[Block]:
    content = message.get("content")
    return [make_text(content)] if isinstance(content, str) else list(content or [])


def read_last_text(request: ModelRequest) -> str:
    """What the person wrote last, in the last message that has a text of theirs."""
    for message in reversed(request.messages):
        if message.get("role") == "user":
            texts = [
                block["text"]
                for block in read_blocks(message)
                if block["type"] == "text" and not is_added(block["text"])
            ]
            if texts:
                return str(texts[0])
    return ""


def read_tool_results(request: ModelRequest) -> list[tuple[str, bool]]:
    """The results in the last message, as texts with whether each is an error."""
    last = read_blocks(request.messages[-1]) if request.messages else []
    return [
        (read_result_text(block), bool(block.get("is_error")))
        for block in last
        if block["type"] == "tool_result"
    ]


def read_result_text(result: Block) -> str:
    parts = read_blocks(result)
    return "\n".join(part.get("text") or f"[{part['type']}]" for part in parts)
