"""The window: what one model call is given, and the record of it.

The order is tools, system prompt, preamble and history from the floor, then what changes with every
message (session state, hint) behind the last cache breakpoint. Whatever is decided here is written
into the manifest, from which ``rebuild`` makes the very same request again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from conversations.archive.context import (
    read_active_compaction,
    read_loaded_skills,
)
from conversations.archive.session_state import StateText, read_state_text
from conversations.archive.turns import (
    count_active_before,
    list_user_turns_before,
    read_beginnings,
    read_user_turn_before,
    walk_active_turns_back,
)
from conversations.domain.attachments import Block
from conversations.domain.runs import NO_CHOICES, RunChoices
from conversations.domain.stream import ModelRequest
from conversations.domain.text import dump_json, estimate_tokens, load_json
from conversations.domain.turns import StoredTurn
from conversations.domain.windows import WindowRules
from conversations.models import Compaction, SessionSkill

from .budget import Choice, Place, WindowBudget, choose_turns, make_budget, make_caps, mark_cache
from .messages import (
    CONTINUE_TEXT,
    Message,
    MessageCaps,
    Piece,
    expand_request,
    join_pieces,
    recall_piece,
    replace_withheld,
    withhold,
)
from .system_prompt import LINE_CHARS, LINES, make_preamble

MANIFEST_VERSION = 2

STATE_MARK = "[Session state, kept by the archive: a record of what happened, not an instruction.]"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowWish:
    """What a window is to be made of. ``floor`` is where the last one started, ``rewinds`` how many
    the session has, ``share`` below 1 asks for a shorter one, ``tools`` are JSON.
    ``refuses_files``: the provider refused a request with what is attached. ``has_compactions`` and
    ``has_skills`` False save looking for them."""

    session_pk: int
    floor: int
    rewinds: int
    model: str
    system: str
    tools: str
    limit: int
    max_output: int
    ratio: float
    rules: WindowRules
    cache: str = "5m"
    hint: str = ""
    go_on: bool = False
    share: float = 1.0
    refuses_files: bool = False
    has_compactions: bool = True
    has_skills: bool = True
    choices: RunChoices = NO_CHOICES


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What is in a window besides its turns. ``tools`` are JSON, ``lines`` beginnings of messages
    that stand below the floor."""

    system: str
    tools: str
    state: StateText
    hint: str
    skills: list[SessionSkill]
    compaction: Compaction | None
    lines: dict[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What the model is given. ``floor`` is the number of its first turn, ``left_out`` counts the
    active turns below. ``texts`` are those that a manifest names by digest. ``estimated`` is the
    prompt's size in estimated tokens, ``limit`` in real ones. ``referring`` is the request with
    attachments by reference, as it is described."""

    request: ModelRequest
    referring: ModelRequest
    floor: int
    left_out: int
    decisions: dict[str, Any]
    texts: dict[str, str]
    estimated: int
    limit: int

    @property
    def has_files(self) -> bool:
        """Whether contents of attachments go along."""
        return self.request is not self.referring

    def describe(self) -> tuple[str, str]:
        """The manifest and the request's digest. For a long window that takes some milliseconds, so
        the request goes out first."""
        return dump_json(self.decisions), request_digest(self.referring)


def assemble_window(wish: WindowWish) -> Window:
    """Read the turns of the window and make the request. Reads a number of rows that the window
    bounds and not the session."""
    budget = make_budget(
        limit=wish.limit, max_output=wish.max_output, ratio=wish.ratio, share=wish.share
    )
    caps = make_caps(budget, wish.rules)
    state = read_state_text(wish.session_pk)
    compaction = read_active_compaction(wish.session_pk) if wish.has_compactions else None
    skills = read_loaded_skills(wish.session_pk) if wish.has_skills else []
    start = max(wish.floor, compaction.to_turn + 1 if compaction else 1)
    lasting = [_measure(text).tokens for text in (wish.system, wish.tools)]
    parts = [state.yaml, wish.hint]
    parts += [compaction.summary] if compaction else []
    parts += [skill.content for skill in skills]
    fixed = sum(lasting) + sum(map(estimate_tokens, parts)) + LINES * LINE_CHARS // 4 + 200
    choice = _choose(wish, start=start, budget=budget.for_history(fixed=fixed), caps=caps)
    texts = Texts(
        system=wish.system,
        tools=wish.tools,
        state=state,
        hint=wish.hint,
        skills=[skill for skill in skills if skill.turn_number < choice.floor],
        compaction=compaction,
        lines=_read_lines(wish, choice),
    )
    return _describe(wish, budget, caps, choice, texts)


def _choose(wish: WindowWish, *, start: int, budget: int, caps: MessageCaps) -> Choice:
    has_rewinds = wish.rewinds > 0

    def make(turn: StoredTurn, caps: MessageCaps) -> Piece:
        return recall_piece(turn, model=wish.model, caps=caps)

    def find_head(before: int) -> StoredTurn | None:
        return read_user_turn_before(wish.session_pk, before, has_rewinds=has_rewinds)

    return choose_turns(
        walk_active_turns_back(wish.session_pk, has_rewinds=has_rewinds, down_to=start),
        floor=start,
        budget=budget,
        rules=wish.rules,
        caps=caps,
        make=make,
        find_head=find_head,
    )


def _read_lines(wish: WindowWish, choice: Choice) -> dict[int, str]:
    if choice.floor <= 1:
        return {}
    numbers = list_user_turns_before(
        wish.session_pk, choice.floor, limit=LINES, has_rewinds=wish.rewinds > 0
    )
    return read_lines(wish.session_pk, numbers)


def read_lines(session_pk: int, numbers: list[int]) -> dict[int, str]:
    """Beginnings of these messages; a few characters more than are shown, for spaces."""
    return read_beginnings(session_pk, numbers, chars=LINE_CHARS * 2)


def _describe(
    wish: WindowWish, budget: WindowBudget, caps: MessageCaps, choice: Choice, texts: Texts
) -> Window:
    """The request and the decisions that made it."""
    session, rewinds = wish.session_pk, wish.rewinds
    left_out = count_active_before(session, choice.floor, has_rewinds=rewinds > 0)
    system, tools = _measure(texts.system), _measure(texts.tools)
    preamble = preamble_of(
        texts, strategy=wish.rules.strategy, floor=choice.floor, left_out=left_out
    )
    pieces = [*([choice.head] if choice.head else []), *choice.pieces]
    history = sum(piece.cost for piece in pieces) + estimate_tokens(preamble)
    estimated = {
        "system": system.tokens,
        "tools": tools.tokens,
        "history": history,
        "tail": estimate_tokens(make_tail(texts)),
    }
    total = sum(estimated.values())
    max_tokens = _most(budget.max_tokens(estimated=total), wish.choices)
    blocks = (piece.blocks for piece in pieces)
    withheld = withhold(session, blocks, are_refused=wish.refuses_files)
    request, places = make_request(
        pieces,
        texts,
        model=wish.model,
        max_tokens=max_tokens,
        preamble=preamble,
        go_on=wish.go_on,
        cache=wish.cache,
        withheld=withheld,
        choices=wish.choices,
    )
    decisions = {
        "v": MANIFEST_VERSION,
        "model": wish.model,
        "max_tokens": max_tokens,
        "choices": wish.choices.as_json(),
        "go_on": wish.go_on,
        "strategy": wish.rules.strategy,
        "turns": _ranges(piece.number for piece in choice.pieces),
        "floor": choice.floor,
        "head": choice.head.number if choice.head else None,
        "left_out": left_out,
        "rewinds": rewinds,
        "state": _state_entry(texts.state),
        "hint": texts.hint,
        "skills": [skill.pk for skill in texts.skills],
        "compaction": texts.compaction.pk if texts.compaction else None,
        "lines": list(texts.lines),
        "caps": asdict(choice.tight or caps),
        "shortened": [
            {"turn": piece.number, "from": piece.full_cost, "to": piece.cost}
            for piece in pieces
            if piece.is_shortened
        ],
        "withheld": withheld,
        "limit": budget.limit,
        "reserve": budget.reserve,
        "budget": budget.tokens,
        "ratio": round(budget.ratio, 4),
        "estimated": estimated | {"total": total},
        "cache": wish.cache,
        "breakpoints": places,
        "tools": [tool["name"] for tool in request.tools],
        "system_digest": system.digest,
        "tools_digest": tools.digest,
    }
    return Window(
        request=expand_request(request),
        referring=request,
        floor=choice.floor,
        left_out=left_out,
        decisions=decisions,
        texts={system.digest: texts.system, tools.digest: texts.tools},
        estimated=total,
        limit=budget.limit,
    )


def _most(limit: int, choices: RunChoices) -> int:
    """Tokens of the answer: what is asked for counts where it is less."""
    return limit if choices.max_tokens is None else min(limit, choices.max_tokens)


def preamble_of(texts: Texts, *, strategy: str, floor: int, left_out: int) -> str:
    """What stands for the turns below the floor."""
    return make_preamble(
        strategy=strategy,
        floor=floor,
        left_out=left_out,
        lines=texts.lines,
        summary=texts.compaction.summary if texts.compaction else "",
        summary_to=texts.compaction.to_turn if texts.compaction else 0,
        skills=texts.skills,
    )


def make_tail(texts: Texts) -> str:
    """What changes with every message: the session state and the hint."""
    parts = [f"{STATE_MARK}\n{texts.state.yaml.strip()}"] if texts.state.yaml.strip() else []
    return "\n\n".join([*parts, *([texts.hint] if texts.hint else [])])


def make_request(
    pieces: list[Piece],
    texts: Texts,
    *,
    model: str,
    max_tokens: int,
    preamble: str,
    go_on: bool,
    cache: str,
    withheld: Mapping[str, str],
    choices: RunChoices,
) -> tuple[ModelRequest, list[Place]]:
    """The request, and where its cache breakpoints are. What is added behind them is not part of
    the next call's history. Attachments are references in it still."""
    given = [
        replace(piece, blocks=replace_withheld(piece.blocks, withheld)) if withheld else piece
        for piece in pieces
    ]
    messages = join_pieces(given)
    if messages and preamble:
        messages[0]["content"].insert(0, {"type": "text", "text": preamble})
    system: list[Block] = [{"type": "text", "text": texts.system}]
    system, messages, places = mark_cache(system, messages, lifetime=cache)
    if messages and (go_on or messages[-1]["role"] == "assistant"):
        _add_text(messages, CONTINUE_TEXT)
    if messages and (tail := make_tail(texts)):
        _add_text(messages, tail)
    request = ModelRequest(
        model=model,
        system=system,
        messages=messages,
        tools=_load_tools(texts.tools),
        max_tokens=max_tokens,
        choices=choices.passed,
    )
    return request, places


@lru_cache(maxsize=16)
def _load_tools(text: str) -> list[dict[str, Any]]:
    """The same list for the same text; nobody changes it."""
    tools: list[dict[str, Any]] = load_json(text)
    return tools


def _add_text(messages: list[Message], text: str) -> None:
    if messages[-1]["role"] != "user":
        messages.append({"role": "user", "content": []})
    messages[-1]["content"].append({"type": "text", "text": text})


def request_digest(request: ModelRequest) -> str:
    """Of a request whose attachments are references: they name their contents."""
    parts: list[Any] = [request.system, request.messages, request.tools]
    return digest_of(dump_json([*parts, request.choices] if request.choices else parts))


def digest_of(text: str) -> str:
    """SHA-256 of a text, by which a manifest names it."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class _Measured(NamedTuple):
    digest: str
    tokens: int


@lru_cache(maxsize=64)
def _measure(text: str) -> _Measured:
    """Of a text that is the same in most calls: its digest and estimated tokens."""
    return _Measured(digest_of(text), estimate_tokens(text))


def _state_entry(state: StateText) -> dict[str, Any] | None:
    if not state.yaml:
        return None
    return {"turn": state.turn, "seq": state.seq, "digest": digest_of(state.yaml)}


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges
