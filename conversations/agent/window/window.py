"""The window: the input of one model call, and the manifest that records it.

The order is tools, system prompt, preamble and history from the floor. The preamble has the account
of the session that this one continues, and the texts that stand for omitted turns. Content that
changes with every message (session state, hint) follows behind the last cache breakpoint. Every
decision is written to the manifest, from which ``manifest.rebuild_request`` makes the same request
again.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from threading import Lock
from typing import Any

from conversations.agent.tools.registry import RECALL
from conversations.archive.asides import read_aside
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
from conversations.domain.stream import KnownBlock, ModelRequest
from conversations.domain.text import dump_json, estimate_tokens, load_json, one_line
from conversations.domain.turns import ASSISTANT, SYSTEM, StoredTurn
from conversations.domain.windows import SLIDING_WINDOW, WindowRules
from conversations.models import Compaction, SessionSkill

from .budget import (
    Place,
    TurnChoice,
    WindowBudget,
    choose_turns,
    frames_of,
    make_budget,
    make_caps,
    mark_cache,
)
from .fitting import CUT, MAX_INDEX_LINE_CHARS, NO_TOOLS, fit_parts, has_recall
from .messages import (
    CONTINUE_TEXT,
    Message,
    MessageCaps,
    WindowPiece,
    expand_request,
    join_pieces,
    make_piece,
    replace_withheld,
    withhold,
    write_calls_as_text,
)
from .parent import ParentAccount

MANIFEST_VERSION = 2

BEGINNING_CHARS = 180  # Per omitted message in the index, with some characters for spaces

LOOKED_UP = f", and {RECALL} looks them up"

NO_STATE = StateText(yaml="", turn=0, seq=0)

STATE_MARK = (
    "[Session state, kept by the archive: a record of what happened. Only its rules and"
    " preferences are instructions, said by the person.]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpec:
    """The input for assembling a window.

    ``floor`` is the start of the last window, and ``rewinds`` the number of the session's rewinds.
    A ``share`` below 1 asks for a shorter window. ``tools`` are JSON. ``refuses_files`` is true if
    the provider refused a request with the attachments. ``takes`` are the known capabilities of the
    model (:data:`~conversations.domain.stream.CAPABILITIES`). ``first_tools`` names the most
    important tools. If ``has_compactions``, ``has_skills`` or ``has_asides`` is False, the query
    for them is saved.
    """

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
    parent: ParentAccount | None = None
    go_on: bool = False
    share: float = 1.0
    refuses_files: bool = False
    has_compactions: bool = True
    has_skills: bool = True
    has_asides: bool = True
    choices: RunChoices = NO_CHOICES
    takes: Mapping[str, bool] = field(default_factory=dict)
    first_tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTexts:
    """The content of a window besides its turns.

    ``tools`` are JSON. ``lines`` are the beginnings of messages below the floor. ``summary_chars``
    is the number of characters of the compaction's summary that are given, or None for all.
    """

    system: str
    tools: str
    state: StateText
    hint: str
    parent: ParentAccount | None
    skills: list[SessionSkill]
    compaction: Compaction | None
    lines: dict[int, str]
    summary_chars: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """An assembled window.

    ``floor`` is the number of its first turn. ``texts`` are the texts that the manifest names by
    digest. ``estimated`` is the prompt's size in estimated tokens, and ``limit`` is in real tokens.
    ``ratio`` is the number of real tokens per estimated token, or 0 if it is not known.
    ``referring`` is the request with attachments by reference, to which the manifest's digest
    belongs.
    """

    request: ModelRequest
    referring: ModelRequest
    floor: int
    decisions: dict[str, Any]
    texts: dict[str, str]
    estimated: int
    limit: int
    ratio: float = 0.0

    @property
    def has_files(self) -> bool:
        return self.request is not self.referring

    def describe(self) -> tuple[str, str]:
        """Return the manifest and the request's digest.

        This takes some milliseconds for a long window, so the request is sent first.
        """
        return dump_json(self.decisions), request_digest(self.referring)


def assemble_window(spec: WindowSpec) -> Window:
    """Read the turns of the window and make the request.

    The number of rows read is bounded by the window and does not depend on the session's length.
    """
    session, has_rewinds = spec.session_pk, spec.rewinds > 0
    budget = make_budget(
        limit=spec.limit, max_output=spec.max_output, ratio=spec.ratio, share=spec.share
    )
    caps = make_caps(budget, spec.rules)
    state = read_state_text(session)
    compaction = read_active_compaction(session) if spec.has_compactions else None
    skills = read_loaded_skills(session) if spec.has_skills else []
    aside = read_aside(session) if spec.has_asides else []
    start = max(spec.floor, compaction.to_turn + 1 if compaction else 1)
    parts = fit_parts(
        budget,
        system=spec.system,
        tools=spec.tools,
        first=spec.first_tools,
        state=state.yaml,
        hint=spec.hint,
        compaction=compaction,
        parent=spec.parent,
        skills=skills,
    )

    selection = TurnSelection(
        session_pk=session, rewinds=spec.rewinds, floor=start, aside=tuple(aside)
    )
    cache = TurnCache(selection, model=spec.model, caps=caps)

    def find_head(before: int) -> StoredTurn | None:
        return read_user_turn_before(session, before, has_rewinds=has_rewinds, aside=aside)

    choice = choose_turns(
        cache.walk_back(),
        floor=start,
        budget=budget.for_history(fixed=parts.cost + frames_of(budget.tokens)),
        rules=spec.rules,
        caps=caps,
        make=cache.make_piece,
        find_head=find_head,
    )
    before: list[int] = []
    if choice.floor > 1 and parts.lines:
        limit = parts.lines
        before = list_user_turns_before(
            session, choice.floor, limit=limit, has_rewinds=has_rewinds, aside=aside
        )
    # Skills with turn 1 are those that a fork had from the start. None of its turns has their call.
    low = max(choice.floor, 2)
    texts = WindowTexts(
        system=parts.prompt.system,
        tools=parts.prompt.tools,
        state=state if parts.has_state else NO_STATE,
        hint=parts.hint,
        parent=parts.parent,
        skills=[skill for skill in parts.skills if skill.turn_number < low],
        compaction=compaction,
        lines=read_beginnings(session, before, chars=BEGINNING_CHARS) if before else {},
        summary_chars=parts.summary_chars,
    )
    return _make_window(spec, budget, caps, choice, texts, parts.reduced, aside)


# Limits of the cache of active turns: the characters of all cached turns (the pieces made from them
# take about twice as much again), and the page size for reading new turns.
MAX_KNOWN_CHARS, NEW_PAGE_TURNS = 16_000_000, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSelection:
    """A selection of a session's turns: down to the floor, without the turns ``aside``."""

    session_pk: int
    rewinds: int
    floor: int
    aside: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _CachedTurns:
    """Turns in order, and their pieces by number for one model and one set of caps."""

    turns: tuple[StoredTurn, ...] = ()
    chars: int = 0
    form: tuple[str, MessageCaps] | None = None
    pieces: dict[int, WindowPiece] = field(default_factory=dict)


# The selection that was used last is at the end.
_cached_turns: OrderedDict[TurnSelection, _CachedTurns] = OrderedDict()
_lock = Lock()


class TurnCache:
    """The cached turns of a selection.

    A turn never changes, and the next call needs nearly all of the turns again.
    """

    def __init__(self, selection: TurnSelection, *, model: str, caps: MessageCaps) -> None:
        self._selection = selection
        self._cached = _cached_turns.get(selection, _CachedTurns())
        self._model, self._caps = model, caps
        self._pieces = self._cached.pieces if self._cached.form == (model, caps) else {}

    def make_piece(self, turn: StoredTurn, caps: MessageCaps) -> WindowPiece:
        """Do the same as :func:`~.messages.make_piece`. A piece's blocks must not be changed."""
        if caps is not self._caps:
            return make_piece(turn, model=self._model, caps=caps)
        piece = self._pieces.get(turn.number)
        if piece is None:
            new_piece = make_piece(turn, model=self._model, caps=caps)
            piece = replace(new_piece, blocks=list(map(KnownBlock, new_piece.blocks)))
            self._pieces[turn.number] = piece
        return piece

    def walk_back(self) -> Iterator[StoredTurn]:
        """Yield the active turns down to the floor, newest first.

        Turns of an earlier window are not read again, because turns are only appended as long as
        the number of rewinds is the same.
        """
        selection, cached = self._selection, self._cached
        last = cached.turns[-1].digest if cached.turns else ""
        later: list[StoredTurn] = []
        for turn in walk_active_turns_back(
            selection.session_pk,
            has_rewinds=selection.rewinds > 0,
            down_to=selection.floor,
            page=NEW_PAGE_TURNS if last else 100,
            aside=selection.aside,
        ):
            # The digest covers the whole chain, so if it is the same, all turns before it are too.
            if last and turn.digest == last:
                break
            later.append(turn)
            yield turn
        else:
            cached = _CachedTurns()
        turns = (*cached.turns, *reversed(later))
        chars = cached.chars + sum(len(turn.content) + len(turn.blocks or "") for turn in later)
        with _lock:
            _cached_turns.pop(selection, None)
            _cached_turns[selection] = _CachedTurns(
                turns, chars, (self._model, self._caps), self._pieces
            )
            while (
                sum(cached_turns.chars for cached_turns in _cached_turns.values()) > MAX_KNOWN_CHARS
            ):
                _cached_turns.popitem(last=False)
        yield from reversed(cached.turns)


def _make_window(
    spec: WindowSpec,
    budget: WindowBudget,
    caps: MessageCaps,
    choice: TurnChoice,
    texts: WindowTexts,
    reduced: list[str],
    aside: list[tuple[int, int]],
) -> Window:
    session, floor, strategy = spec.session_pk, choice.floor, spec.rules.strategy
    left_out = count_active_before(session, floor, has_rewinds=spec.rewinds > 0)
    system_digest, system_tokens = _measure(texts.system)
    tools_digest, tools_tokens = _measure(texts.tools)
    preamble = preamble_of(texts, strategy=strategy, floor=floor, left_out=left_out)
    pieces = [*([choice.head] if choice.head else []), *choice.pieces]
    history = sum(piece.cost for piece in pieces) + estimate_tokens(preamble)
    estimated = {
        "system": system_tokens,
        "tools": tools_tokens,
        "history": history,
        "tail": estimate_tokens(make_tail(texts)),
    }
    total = sum(estimated.values())
    max_tokens = budget.max_tokens(estimated=total)
    if spec.choices.max_tokens is not None:
        max_tokens = min(max_tokens, spec.choices.max_tokens)
    files = [block for piece in pieces for block in piece.references]
    withheld = withhold(session, files, are_refused=spec.refuses_files, takes=spec.takes)
    has_tools = texts.tools != NO_TOOLS
    choices = spec.choices.for_tools(has_any=has_tools, has_own=True).within(max_tokens)
    # An answer that was interrupted before its first word cannot be continued.
    roles = [piece.role for piece in pieces if piece.blocks and piece.role != SYSTEM]
    go_on = spec.go_on and roles[-1:] == [ASSISTANT]
    request, places = make_request(
        pieces,
        texts,
        model=spec.model,
        max_tokens=max_tokens,
        preamble=preamble,
        go_on=go_on,
        cache=spec.cache,
        withheld=withheld,
        choices=choices,
        has_tools=has_tools,
    )
    decisions = {
        "v": MANIFEST_VERSION,
        "model": spec.model,
        "max_tokens": max_tokens,
        "choices": choices.as_json(),
        "go_on": go_on,
        "strategy": strategy,
        "turns": ranges_of(piece.number for piece in choice.pieces),
        "floor": floor,
        "head": choice.head.number if choice.head else None,
        "left_out": left_out,
        "aside": [list(pair) for pair in aside if pair[1] >= floor],
        "rewinds": spec.rewinds,
        "state": _describe_state(texts.state) if texts.state.yaml else None,
        "hint": texts.hint,
        "parent": texts.parent.source if texts.parent else None,
        "skills": [skill.pk for skill in texts.skills],
        "compaction": texts.compaction.pk if texts.compaction else None,
        "summary_chars": texts.summary_chars,
        "reduced": reduced,
        "lines": list(texts.lines),
        "caps": asdict(choice.tight or caps),
        "shortened": [
            {"turn": piece.number, "from": piece.full_cost, "to": piece.cost}
            for piece in pieces
            if piece.cost < piece.full_cost
        ],
        "withheld": withheld,
        "lacks_thinking": ranges_of(piece.number for piece in pieces if piece.lacks_thinking),
        "has_tools": has_tools,
        "limit": budget.limit,
        "reserve": budget.reserve,
        "budget": budget.tokens,
        "ratio": round(budget.ratio, 4),
        "estimated": estimated | {"total": total},
        "cache": spec.cache,
        "breakpoints": places,
        "tools": [tool["name"] for tool in request.tools],
        "system_digest": system_digest,
        "tools_digest": tools_digest,
    }
    return Window(
        request=expand_request(request) if files else request,
        referring=request,
        floor=floor,
        decisions=decisions,
        texts={system_digest: texts.system, tools_digest: texts.tools},
        estimated=total,
        limit=budget.limit,
        ratio=spec.ratio,
    )


def preamble_of(texts: WindowTexts, *, strategy: str, floor: int, left_out: int) -> str:
    """Return the text for the turns below the floor and the session before this one.

    The text is empty if there are none.
    """
    parts = [texts.parent.text] if texts.parent else []
    if (compaction := texts.compaction) and (summary := compaction.summary[: texts.summary_chars]):
        is_cut = len(summary) < len(compaction.summary)
        parts.append(
            f"[Summary of turns {compaction.from_turn}-{compaction.to_turn}, written by a model."
            " The turns themselves are in the archive, word for word.]\n"
            f"{summary.strip()}{CUT if is_cut else ''}\n[End of the summary.]"
        )
    if left_out and strategy == SLIDING_WINDOW:
        parts.append(f"[Note: {left_out} older messages truncated to stay within token limit]")
    elif left_out:
        notice = (
            f"[Archive: the window starts at turn {floor}. {left_out} earlier turns of this session"
            f" are not shown; nothing is lost{LOOKED_UP if has_recall(texts.tools) else ''}.]"
        )
        if texts.lines:
            notice += "\nThe person's messages shortly before, for orientation:"
        for turn, text in texts.lines.items():
            notice += f"\n- turn {turn}: {one_line(text, limit=MAX_INDEX_LINE_CHARS)}"
        parts.append(notice)
    parts += [
        f"[Skill {skill.name!r}, loaded at turn {skill.turn_number} and still in force.]\n"
        f"{skill.content.strip()}\n[End of the skill.]"
        for skill in texts.skills
    ]
    return "\n\n".join(parts)


def make_tail(texts: WindowTexts) -> str:
    parts = [f"{STATE_MARK}\n{texts.state.yaml.strip()}"] if texts.state.yaml.strip() else []
    return "\n\n".join([*parts, *([texts.hint] if texts.hint else [])])


def _describe_state(state: StateText) -> dict[str, Any]:
    """Return what a manifest needs to rebuild the state."""
    described: dict[str, Any] = {
        "turn": state.turn,
        "seq": state.seq,
        "digest": digest_of(state.yaml),
        "root": state.root,  # The data folder may be moved
    }
    # The memory changes independently of the session, so the manifest lists the items that were
    # given.
    if state.kept:
        described["kept"] = [list(item) for item in state.kept]
    return described


def make_request(
    pieces: list[WindowPiece],
    texts: WindowTexts,
    *,
    model: str,
    max_tokens: int,
    preamble: str,
    go_on: bool,
    cache: str,
    withheld: Mapping[str, str],
    choices: RunChoices,
    has_tools: bool = True,
) -> tuple[ModelRequest, list[Place]]:
    """Return the request, and the places of its cache breakpoints.

    Blocks that are added behind the breakpoints are not part of the next call's history.
    Attachments are still references. ``has_tools`` is true if the model is given tools.
    """
    messages = join_pieces(replace_withheld(pieces, withheld) if withheld else pieces)
    if not has_tools:
        messages = write_calls_as_text(messages)
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
    """Return the same list for the same text. Callers must not change it."""
    tools: list[dict[str, Any]] = load_json(text)
    return tools


def _add_text(messages: list[Message], text: str) -> None:
    if messages[-1]["role"] != "user":
        messages.append({"role": "user", "content": []})
    messages[-1]["content"].append({"type": "text", "text": text})


def request_digest(request: ModelRequest) -> str:
    """Return the digest of a request whose attachments are references.

    The references contain the digests of the attachments' content.
    """
    after: list[Any] = [request.tools, *([request.choices] if request.choices else [])]
    parts = (dump_json(request.system), request.messages_json, *map(dump_json, after))
    return digest_of(f"[{','.join(parts)}]")


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, by which a manifest names it."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@lru_cache(maxsize=64)
def _measure(text: str) -> tuple[str, int]:
    """Return the digest and the estimated tokens of a text that most calls share."""
    return digest_of(text), estimate_tokens(text)


def ranges_of(numbers: Iterable[int]) -> list[list[int]]:
    """Return ascending numbers as inclusive ranges."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges
