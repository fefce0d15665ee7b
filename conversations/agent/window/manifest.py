"""The manifest: the record of a model call's input, read from its stored JSON.

Fields that a manifest lacks are None or empty, so one page can show manifests of all kinds.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from conversations.archive.context import read_compaction, read_skills
from conversations.archive.model_calls import read_call, read_prompt_texts, walk_calls
from conversations.archive.session_state import StateText, rebuild_state_text
from conversations.archive.turns import read_beginnings, read_turns_in
from conversations.domain.errors import NotFound
from conversations.domain.events import MalformedPayload
from conversations.domain.messages import say
from conversations.domain.runs import read_choices
from conversations.domain.session_state import KeptItem
from conversations.domain.stream import ModelRequest
from conversations.domain.text import load_json

from .messages import MessageCaps, make_piece
from .parent import ParentPurged, rebuild_parent_account
from .sampling import SAMPLED, rebuild_sampling_request
from .summary import COMPACTION, rebuild_summary_request
from .title import TITLE, rebuild_title_request
from .window import (
    BEGINNING_CHARS,
    MANIFEST_VERSION,
    WindowTexts,
    make_request,
    preamble_of,
    request_digest,
)


class _ManifestModel(BaseModel):
    # Otherwise every server start would build validators that only readers of a window need.
    model_config = ConfigDict(defer_build=True)


class ShortenedTurn(_ManifestModel):
    """A message that was shortened, with its size before and after in estimated tokens."""

    turn: int
    before: int = Field(alias="from")
    after: int = Field(alias="to")


class StateMark(_ManifestModel):
    """The session state that was given.

    It is identified by the turn it follows and its digest. ``kept`` are the items of the workspace
    memory in it.
    """

    turn: int
    digest: str
    kept: tuple[KeptItem, ...] = ()


class ParentMark(_ManifestModel):
    """The session of which an account was given: its key, and how many turns it had."""

    session: int
    uuid: UUID
    turn: int


class Manifest(_ManifestModel):
    """The decisions about one model call.

    ``turns`` are inclusive ranges in order. ``estimated`` has the tokens of each part, and their
    sum as ``total``. ``breakpoints`` have a part and a number within it, from 0. ``skills`` and
    ``compaction`` are primary keys. ``choices`` are the options that a program asked for.

    ``withheld`` has the reason why an attachment was left out, by digest. ``aside`` are turns of a
    request that the provider refused. ``lacks_thinking`` are turns that had another model's
    thinking. ``has_tools`` is true if the model supports tools and the window has some. ``reduced``
    names the parts that were shortened or left out to fit into a small window.
    """

    kind: str = ""
    turns: tuple[tuple[int, int], ...] = ()
    floor: int | None = None
    left_out: int | None = None
    aside: tuple[tuple[int, int], ...] = ()
    head: int | None = None
    strategy: str = ""
    go_on: bool = False
    max_tokens: int | None = None
    state: StateMark | None = None
    hint: str = ""
    parent: ParentMark | None = None
    skills: tuple[int, ...] = ()
    compaction: int | None = None
    shortened: tuple[ShortenedTurn, ...] = ()
    estimated: dict[str, int] = {}
    limit: int | None = None
    reserve: int | None = None
    budget: int | None = None
    ratio: float | None = None
    breakpoints: tuple[tuple[str, int | None], ...] = ()
    tools: tuple[str, ...] = ()
    choices: dict[str, Any] = {}
    withheld: dict[str, str] = {}
    lacks_thinking: tuple[tuple[int, int], ...] = ()
    has_tools: bool = True
    reduced: tuple[str, ...] = ()


def read_manifest(text: str) -> Manifest:
    """Parse a stored manifest. Raise MalformedPayload with the reason if it is invalid."""
    try:
        value = load_json(text)
    except ValueError as error:
        raise MalformedPayload(say("it is not JSON")) from error
    if not isinstance(value, dict):
        raise MalformedPayload(say("it is not an object"))
    if value.get("v") != MANIFEST_VERSION:
        raise MalformedPayload(say("its version is unknown"))
    values = {name: part for name, part in value.items() if part is not None}
    try:
        places = [(name, *numbers[:1]) for name, *numbers in values.get("breakpoints", ())]
        values["breakpoints"] = [place if len(place) > 1 else (*place, None) for place in places]
        return Manifest.model_validate(values)
    except (TypeError, ValueError) as error:  # pydantic's ValidationError is a ValueError
        raise MalformedPayload(say("a part of it is invalid")) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltRequest:
    """The result of rebuilding a request.

    ``matches`` is true if the request has the digest that was stored with the call. If the request
    cannot be rebuilt, ``request`` is None and ``reason`` is a sentence that says why.
    ``is_damaged`` is true if rebuilding should have been possible.
    """

    request: ModelRequest | None = None
    matches: bool = False
    reason: str = ""
    is_damaged: bool = False


# Functions that rebuild other requests than those of a window, by the kind of the manifest.
REBUILT_BY = {
    COMPACTION: rebuild_summary_request,
    SAMPLED: rebuild_sampling_request,
    TITLE: rebuild_title_request,
}


def rebuild_request(call_pk: int) -> RebuiltRequest:
    """Rebuild the request of a model call as it was sent, with attachments by reference.

    Read as many rows as the window had. Raise NotFound if the call does not exist.
    """
    call = read_call(call_pk)
    try:
        manifest = load_json(call.manifest, default={})
        if not isinstance(manifest, dict) or manifest.get("v") != MANIFEST_VERSION:
            reason = say("This call was recorded without the data to rebuild its request.")
            return RebuiltRequest(reason=reason)
        rebuild = REBUILT_BY.get(manifest.get("kind", ""), _rebuild_window)
        request = rebuild(call.session_id, manifest)
    except ParentPurged:
        return RebuiltRequest(
            reason=say("The session that this one was created from has been permanently deleted.")
        )
    except (KeyError, TypeError, ValueError, NotFound) as error:
        return RebuiltRequest(
            reason=say("The record of this call is damaged: %(reason)s.", reason=str(error)),
            is_damaged=True,
        )
    matches = request_digest(request) == call.request_digest
    differs = "" if matches else say("The rebuilt request differs from the one that was sent.")
    return RebuiltRequest(request=request, matches=matches, reason=differs, is_damaged=not matches)


def find_damaged_calls(session: UUID | None) -> Iterator[tuple[UUID, int, str]]:
    """Yield the model calls whose request cannot be rebuilt, oldest first.

    Each item is the session, the call's primary key and the reason. One call is read at a time. If
    ``session`` is None, the calls of all sessions are checked.
    """
    for call_pk, uuid in walk_calls(session):
        with suppress(NotFound):  # The call's session was purged meanwhile
            rebuilt = rebuild_request(call_pk)
            if rebuilt.is_damaged and read_call(call_pk):
                yield uuid, call_pk, rebuilt.reason


def _rebuild_window(session_pk: int, manifest: Mapping[str, Any]) -> ModelRequest:
    prompt_texts = read_prompt_texts([manifest["system_digest"], manifest["tools_digest"]])
    compaction, state = manifest["compaction"], StateText(yaml="", turn=0, seq=0)
    if (mark := manifest["state"]) is not None:
        place = {"turn": mark["turn"], "seq": mark["seq"], "rewinds": manifest["rewinds"]}
        memory = [KeptItem(*item) for item in mark.get("kept", ())]
        state = rebuild_state_text(session_pk, **place, root=mark["root"], kept=memory)
    texts = WindowTexts(
        system=prompt_texts[manifest["system_digest"]],
        tools=prompt_texts[manifest["tools_digest"]],
        state=state,
        hint=manifest["hint"],
        parent=rebuild_parent_account(parent) if (parent := manifest["parent"]) else None,
        skills=read_skills(manifest["skills"]),
        compaction=read_compaction(compaction) if compaction else None,
        lines=read_beginnings(session_pk, manifest["lines"], chars=BEGINNING_CHARS),
        summary_chars=manifest["summary_chars"],
    )
    ranges = [(low, high) for low, high in manifest["turns"]]
    if manifest["head"] is not None:
        ranges.insert(0, (manifest["head"], manifest["head"]))
    model, caps = manifest["model"], MessageCaps(**manifest["caps"])
    turns = read_turns_in(session_pk, ranges)
    strategy, floor, left_out = manifest["strategy"], manifest["floor"], manifest["left_out"]
    request, _ = make_request(
        [make_piece(turn, model=model, caps=caps) for turn in turns],
        texts,
        model=model,
        max_tokens=manifest["max_tokens"],
        preamble=preamble_of(texts, strategy=strategy, floor=floor, left_out=left_out),
        go_on=manifest["go_on"],
        cache=manifest["cache"],
        withheld=manifest["withheld"],
        choices=read_choices(manifest["choices"]),
        has_tools=manifest["has_tools"],
    )
    return request
