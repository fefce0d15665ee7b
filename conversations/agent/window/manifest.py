"""The record of what one model call was given, read from its stored JSON.

Version 2 says everything; version 1 what there was to say. What a manifest lacks is None or empty,
so that the oldest and the newest are shown by the same page.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conversations.domain.events import Malformed
from conversations.domain.text import load_json

COMPACTION = "compaction"  # The kind of a call that writes a summary rather than an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortened:
    """A message that was given in part; in estimated tokens."""

    turn: int
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMark:
    """The session state that was given: after which turn, by its digest."""

    turn: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """``turns`` are inclusive ranges in order. Tokens in ``estimated`` by part, with their sum as
    ``total``; breakpoints by part and number within it, from 0. ``skills`` and ``compaction`` are
    keys of their tables, ``choices`` what a program asked of the answer."""

    version: int
    kind: str
    turns: tuple[tuple[int, int], ...]
    floor: int | None
    left_out: int | None
    head: int | None
    strategy: str
    go_on: bool
    max_tokens: int | None
    state: StateMark | None
    hint: str
    skills: tuple[int, ...]
    compaction: int | None
    shortened: tuple[Shortened, ...]
    estimated: Mapping[str, int]
    limit: int | None
    reserve: int | None
    budget: int | None
    ratio: float | None
    breakpoints: tuple[tuple[str, int | None], ...]
    tools: tuple[str, ...]
    choices: Mapping[str, Any]


def read_manifest(text: str) -> Manifest:
    """Raises Malformed with the reason for one that cannot be understood."""
    try:
        value = load_json(text)
    except ValueError as error:
        raise Malformed("it is not JSON") from error
    if not isinstance(value, dict):
        raise Malformed("it is not an object")
    try:
        return _read(value)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise Malformed("a part of it is not what it should be") from error


def _read(value: Mapping[str, Any]) -> Manifest:
    state = value.get("state")
    return Manifest(
        version=int(value.get("v") or 1),
        kind=_text(value.get("kind")),
        turns=tuple((int(low), int(high)) for low, high in value.get("turns") or ()),
        floor=_number(value.get("floor")),
        left_out=_number(value.get("left_out")),
        head=_number(value.get("head")),
        strategy=_text(value.get("strategy")),
        go_on=value.get("go_on") is True,
        max_tokens=_number(value.get("max_tokens")),
        state=StateMark(turn=int(state["turn"]), digest=_text(state["digest"])) if state else None,
        hint=_text(value.get("hint")),
        skills=tuple(int(pk) for pk in value.get("skills") or ()),
        compaction=_number(value.get("compaction")),
        shortened=tuple(
            Shortened(turn=int(one["turn"]), before=int(one["from"]), after=int(one["to"]))
            for one in value.get("shortened") or ()
        ),
        estimated=_estimated(value),
        limit=_number(value.get("limit")),
        reserve=_number(value.get("reserve")),
        budget=_number(value.get("budget")),
        ratio=float(value["ratio"]) if value.get("ratio") is not None else None,
        breakpoints=tuple(
            (_text(name), int(numbers[0]) if numbers else None)
            for name, *numbers in value.get("breakpoints") or ()
        ),
        tools=tuple(_text(name) for name in value.get("tools") or ()),
        choices=dict(value.get("choices") or {}),
    )


def _estimated(value: Mapping[str, Any]) -> dict[str, int]:
    parts = value.get("estimated")
    if parts is not None:
        return {str(name): int(tokens) for name, tokens in parts.items()}
    if "estimated_tokens" not in value:
        return {}
    history, system = int(value["estimated_tokens"]), int(value.get("system_tokens") or 0)
    return {"system": system, "history": history, "total": system + history}


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _number(value: Any) -> int | None:
    return None if value is None else int(value)
