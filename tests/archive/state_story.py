"""Builders of the turns from which a session state is made."""

from collections.abc import Mapping
from typing import Any

from conversations.archive.append import append
from conversations.domain.text import dump_json
from conversations.domain.turns import NewTurn
from conversations.models import Session


def message(text: str) -> NewTurn:
    return NewTurn(role="user", content=text, token_count=len(text) // 4)


def answer(text: str = "Done.", *, model: str = "model-a") -> NewTurn:
    return NewTurn(
        role="assistant",
        content=text,
        blocks=dump_json([{"type": "text", "text": text}]),
        token_count=len(text) // 4,
        metadata=dump_json({"model": model}),
    )


def calls(*wanted: tuple[str, Mapping[str, Any]]) -> NewTurn:
    """Return an answer with tool calls; the first call has the id ``c0``."""
    blocks = [
        {"type": "tool_use", "id": f"c{place}", "name": name, "input": dict(arguments)}
        for place, (name, arguments) in enumerate(wanted)
    ]
    text = dump_json(blocks)
    return NewTurn(role="assistant", content="", blocks=text, tool_calls=text)


def result(
    output: str = "", *, name: str = "tool", ok: bool | None = True, place: int = 0
) -> NewTurn:
    return NewTurn(
        role="tool",
        content=output,
        tool_call_id=f"c{place}",
        tool_name=name,
        metadata="{}" if ok is None else dump_json({"ok": ok}),
    )


def used(
    name: str, arguments: Mapping[str, Any], output: str = "", *, ok: bool | None = True
) -> list[NewTurn]:
    """Return two turns: a tool call and its result."""
    return [calls((name, arguments)), result(output, name=name, ok=ok)]


def write(session: Session, *turns: NewTurn) -> list[int]:
    """Append the turns one at a time, as a session grows, and return their numbers."""
    return [append(session.pk, session_uuid=session.uuid, turns=[turn]).turns[0] for turn in turns]
