"""The record of what one model call was given, read from its stored JSON.

Version 2 says everything; version 1 what there was to say. What a manifest lacks is None or empty,
so that the oldest and the newest are shown by the same page.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from conversations.archive.context import read_compaction, read_skills
from conversations.archive.model_calls import read_call, read_prompt_texts, walk_calls
from conversations.archive.session_state import StateText, rebuild_state_text
from conversations.archive.turns import read_turns_in
from conversations.domain.errors import NotFound
from conversations.domain.events import Malformed
from conversations.domain.runs import read_choices
from conversations.domain.stream import ModelRequest
from conversations.domain.text import load_json
from conversations.models import ModelCall

from .messages import MessageCaps, make_piece
from .summary import KIND, rebuild_summary_request
from .window import MANIFEST_VERSION, Texts, make_request, preamble_of, read_lines, request_digest

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


# What the model saw: a request rebuilt from the archive and its manifest.


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltRequest:
    """``matches``: the request has the digest that was stored with the call. Where it cannot be
    rebuilt, ``request`` is None and ``reason`` a sentence that says why; ``is_damaged``: it should
    be possible."""

    request: ModelRequest | None
    digest: str
    matches: bool
    reason: str = ""
    is_damaged: bool = False


def rebuild_request(call_pk: int) -> RebuiltRequest:
    """The request of a model call, as it was sent, attachments by reference. Reads as many rows as
    the window had. Raises NotFound for a call that does not exist."""
    call = read_call(call_pk)
    try:
        manifest = load_json(call.manifest, default={})
        if not isinstance(manifest, dict) or manifest.get("v") != MANIFEST_VERSION:
            return _impossible("This call was recorded before requests could be rebuilt.")
        request = _rebuild(call, manifest)
    except (KeyError, TypeError, ValueError, NotFound) as error:
        return _impossible(f"The record of this call is damaged: {error}.", is_damaged=True)
    digest = request_digest(request)
    matches = digest == call.request_digest
    reason = "" if matches else "What is rebuilt differs from what was sent."
    return RebuiltRequest(
        request=request, digest=digest, matches=matches, reason=reason, is_damaged=not matches
    )


def _impossible(reason: str, *, is_damaged: bool = False) -> RebuiltRequest:
    return RebuiltRequest(
        request=None, digest="", matches=False, reason=reason, is_damaged=is_damaged
    )


def find_damaged_calls(session: UUID | None) -> Iterator[tuple[UUID, int, str]]:
    """Model calls whose request cannot be made again, oldest first: the session, the call's key and
    why. Reads one call at a time; ``session`` None: of all."""
    for call_pk, uuid in walk_calls(session):
        with suppress(NotFound):  # its session was purged meanwhile
            rebuilt = rebuild_request(call_pk)
            if rebuilt.is_damaged and read_call(call_pk):
                yield uuid, call_pk, rebuilt.reason


def _rebuild(call: ModelCall, manifest: Mapping[str, Any]) -> ModelRequest:
    if manifest.get("kind") == KIND:
        return rebuild_summary_request(call.session_id, manifest)
    texts = _read_texts(call.session_id, manifest)
    ranges = [(low, high) for low, high in manifest["turns"]]
    if manifest["head"] is not None:
        ranges.insert(0, (manifest["head"], manifest["head"]))
    caps = MessageCaps(**manifest["caps"])
    pieces = [
        make_piece(turn, model=manifest["model"], caps=caps)
        for turn in read_turns_in(call.session_id, ranges)
    ]
    request, _ = make_request(
        pieces,
        texts,
        model=manifest["model"],
        max_tokens=manifest["max_tokens"],
        preamble=preamble_of(
            texts,
            strategy=manifest["strategy"],
            floor=manifest["floor"],
            left_out=manifest["left_out"],
        ),
        go_on=manifest["go_on"],
        cache=manifest["cache"],
        withheld=manifest.get("withheld", {}),
        choices=read_choices(manifest.get("choices")),
    )
    return request


def _read_texts(session_pk: int, manifest: Mapping[str, Any]) -> Texts:
    kept = read_prompt_texts([manifest["system_digest"], manifest["tools_digest"]])
    compaction = manifest["compaction"]
    return Texts(
        system=kept[manifest["system_digest"]],
        tools=kept[manifest["tools_digest"]],
        state=_read_state(session_pk, manifest),
        hint=manifest["hint"],
        skills=read_skills(manifest["skills"]),
        compaction=read_compaction(compaction) if compaction else None,
        lines=read_lines(session_pk, manifest["lines"]),
    )


def _read_state(session_pk: int, manifest: Mapping[str, Any]) -> StateText:
    state = manifest["state"]
    if state is None:
        return StateText(yaml="", turn=0, seq=0)
    return rebuild_state_text(
        session_pk, turn=state["turn"], seq=state["seq"], rewinds=manifest["rewinds"]
    )
