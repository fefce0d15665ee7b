"""The text of a model request, a part at a time: a window may have megabytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conversations.domain.stream import ModelRequest
from conversations.domain.text import dump_json, estimate_tokens, one_line, storable

MESSAGES = 20
"""Messages of one page."""

SHOWN = 6_000
"""Characters of one text that a page shows; the rest is one click away."""

SHOWN_ALONE = 400_000
"""The same where it is the only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownText:
    """A text of the request. ``key`` names it in an address, ``left_out`` counts the
    characters that are not shown."""

    key: str
    name: str
    first_line: str
    tokens: int
    text: str
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPage:
    """Part of a request. ``first`` and ``last`` number its messages from 1; ``earlier``
    and ``later`` are the numbers at which the pages next to it begin."""

    head: list[ShownText]
    messages: list[ShownText]
    count: int
    first: int = 0
    last: int = 0
    earlier: int | None = None
    later: int | None = None


def make_page(request: ModelRequest, *, start: int | None) -> TextPage:
    """A page of messages from number ``start`` on; without it the newest ones, since
    what is new stands there. The first page has the system prompt and the tools too."""
    count = len(request.messages)
    first = max(1, count - MESSAGES + 1) if start is None else max(1, min(start, count))
    last = min(count, first + MESSAGES - 1)
    return TextPage(
        head=[_show(key, *text) for key, text in _head(request).items()],
        messages=[_show_message(request.messages, n) for n in range(first, last + 1)],
        count=count,
        first=first,
        last=last,
        earlier=max(1, first - MESSAGES) if first > 1 else None,
        later=last + 1 if last < count else None,
    )


def make_single(request: ModelRequest, key: str) -> TextPage | None:
    """One text, as long as a page can carry; None if there is none of that key."""
    head = _head(request)
    if key in head:
        return TextPage(
            head=[_show(key, *head[key], limit=SHOWN_ALONE)],
            messages=[],
            count=len(request.messages),
        )
    if not key.isascii() or not key.isdigit() or not 1 <= int(key[:9]) <= len(request.messages):
        return None
    message = _show_message(request.messages, int(key), limit=SHOWN_ALONE)
    return TextPage(head=[], messages=[message], count=len(request.messages))


def _head(request: ModelRequest) -> dict[str, tuple[str, str]]:
    system = "\n\n".join(str(block.get("text", "")) for block in request.system)
    tools = "\n\n".join(dump_json(tool) for tool in request.tools)
    texts = {
        "system": ("System prompt", system),
        "tools": (f"Tools ({len(request.tools)})", tools),
        "choices": ("Asked of the answer", dump_json(request.choices) if request.choices else ""),
    }
    return {key: text for key, text in texts.items() if text[1]}


def _show_message(
    messages: Sequence[dict[str, Any]], number: int, *, limit: int = SHOWN
) -> ShownText:
    message = messages[number - 1]
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    text = "\n\n".join(block_text(block) for block in blocks)
    role = {"user": "Person", "assistant": "Assistant"}.get(str(message.get("role")), "")
    if role == "Person" and any(block.get("type") == "tool_result" for block in blocks):
        role = "Tool result"
    return _show(str(number), f"{number} · {role}", text, limit=limit)


def block_text(block: dict[str, Any]) -> str:
    """A block as text; whatever is no text, as the JSON that was sent."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "thinking":
        return f"[thinking]\n{block.get('thinking', '')}"
    if kind == "tool_result" and isinstance(block.get("content"), str):
        return f"[tool_result {block.get('tool_use_id', '')}]\n{block['content']}"
    return f"[{kind}]\n{dump_json(block)}"


def _show(key: str, name: str, text: str, *, limit: int = SHOWN) -> ShownText:
    return ShownText(
        key=key,
        name=name,
        first_line=one_line(storable(text), limit=80),
        tokens=estimate_tokens(text),
        text=storable(text[:limit]),
        left_out=max(0, len(text) - limit),
    )
