"""How many tokens the window may have."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from conversations.domain.turns import ASSISTANT, USER, StoredTurn
from conversations.domain.windows import WindowRules

from .messages import MessageCaps, Piece

# Shares of the input left free because tokens are estimated: once the provider has reported how its
# count compares, and before.
KNOWN_MARGIN, UNKNOWN_MARGIN = 0.05, 0.15

# Bounds of the correction: a report outside is a mistake of the report.
LOWEST_RATIO, HIGHEST_RATIO = 0.5, 4.0

# At least what the model may answer, or an eighth of its input, is kept for the answer; a long
# answer gets more where the window leaves room.
RESERVED_SHARE = 8

# Share of the budget that the history has even if the system prompt is enormous.
LEAST_HISTORY = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBudget:
    """``limit``: tokens of input and answer that the model takes. ``reserve`` of them are for the
    answer. ``tokens``: estimated tokens that the whole prompt may have; ``ratio``: real tokens for
    one that is estimated."""

    limit: int
    reserve: int
    tokens: int
    ratio: float
    margin: float
    max_output: int

    def for_history(self, *, fixed: int) -> int:
        """What is left beside ``fixed`` estimated tokens."""
        return max(self.tokens - fixed, int(self.tokens * LEAST_HISTORY))

    def max_tokens(self, *, estimated: int) -> int:
        """The longest answer beside a prompt of that size, in the provider's tokens."""
        prompt = int(estimated * self.ratio * (1 + self.margin))
        return max(min(self.max_output, self.limit - prompt), min(self.reserve, self.max_output))


def make_budget(*, limit: int, max_output: int, ratio: float, share: float = 1.0) -> WindowBudget:
    """``ratio`` 0: not known yet. ``share`` below 1 makes a window that the provider found too long
    shorter."""
    margin = KNOWN_MARGIN if ratio else UNKNOWN_MARGIN
    bounded = min(HIGHEST_RATIO, max(LOWEST_RATIO, ratio)) if ratio else 1.0
    reserve = min(max_output, limit // RESERVED_SHARE)
    tokens = int((limit - reserve) * (1 - margin) * share / bounded)
    return WindowBudget(
        limit=limit,
        reserve=reserve,
        tokens=max(100, tokens),
        ratio=bounded,
        margin=margin,
        max_output=max_output,
    )


def make_caps(budget: WindowBudget, rules: WindowRules) -> MessageCaps:
    """From the limit alone and not from the ratio, which changes with every answer: a turn has to
    be the same bytes in every call, or the cache is lost."""
    room = budget.limit - budget.reserve
    return MessageCaps(
        message=int(room * rules.message_share),
        result=int(room * rules.result_share),
        attached=room,
    )


# Where the provider is asked to keep the prompt in its cache.


LOOK_BACK = 20
# Blocks from the end of the history to the breakpoint between, below the look-back.
SPACING = LOOK_BACK - 2

type Block = dict[str, Any]
type Message = dict[str, Any]
type Place = tuple[str, int, int]


def mark_cache(
    system: list[Block], messages: list[Message], *, lifetime: str
) -> tuple[list[Block], list[Message], list[Place]]:
    """Copies with the breakpoints set, and where they are: ``("system", block, 0)`` or
    ``("messages", message, block)``. ``lifetime``: ``5m``, ``1h`` or ``off``."""
    if lifetime == "off":
        return system, messages, []
    control = {"type": "ephemeral"} | ({"ttl": "1h"} if lifetime == "1h" else {})
    places: list[Place] = []
    if system:
        system = [*system[:-1], system[-1] | {"cache_control": control}]
        places.append(("system", len(system) - 1, 0))
    messages = [message | {"content": list(message["content"])} for message in messages]
    for number, block in _history_places(messages):
        content = messages[number]["content"]
        content[block] = content[block] | {"cache_control": control}
        places.append(("messages", number, block))
    return system, messages, places


def _history_places(messages: list[Message]) -> list[tuple[int, int]]:
    """The ends of the last two messages of the person, and a place between."""
    people = [at for at, message in enumerate(messages) if message["role"] == "user"]
    ends = [(at, len(messages[at]["content"]) - 1) for at in people[-2:]]
    if not ends:
        return []
    flat = [
        (at, block)
        for at, message in enumerate(messages)
        for block in range(len(message["content"]))
    ]
    last = len(flat) - 1
    before = flat.index(ends[0]) if len(ends) == 2 else 0
    if last - before > SPACING:
        between = [
            place
            for place in flat[before + 1 : last - SPACING + 1]
            if messages[place[0]]["role"] == "user"
        ]
        ends[1:1] = between[-1:]
    return ends


# Choosing the turns: from the floor to the newest, within the budget.


LEAST_CAP = 8  # Estimated tokens to which everything is shortened before a window counts as full

type MakePiece = Callable[[StoredTurn, MessageCaps], Piece]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``pieces`` in order, from the floor on. ``head``: a message below the floor that is given
    too. ``tight``: lower caps, where one exchange was still too much."""

    pieces: list[Piece]
    floor: int
    head: Piece | None = None
    tight: MessageCaps | None = None


@dataclass(slots=True)
class _Taken:
    """Turns from the newest back. ``exchanges`` and ``units`` are the places where a window can
    start: the cost and the number of turns from there on."""

    turns: list[StoredTurn] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    cost: int = 0
    exchanges: list[tuple[int, int]] = field(default_factory=list)
    units: list[tuple[int, int]] = field(default_factory=list)

    def add(self, turn: StoredTurn, piece: Piece) -> None:
        self.turns.append(turn)
        self.pieces.append(piece)
        self.cost += piece.cost
        if turn.role == USER:
            self.exchanges.append((self.cost, len(self.turns)))
        if turn.role in (USER, ASSISTANT):
            self.units.append((self.cost, len(self.turns)))


def choose_turns(
    newest_first: Iterable[StoredTurn],
    *,
    floor: int,
    budget: int,
    rules: WindowRules,
    caps: MessageCaps,
    make: MakePiece,
    find_head: Callable[[int], StoredTurn | None],
) -> Choice:
    """``newest_first`` are the active turns down to the floor, ``find_head`` gives the last message
    of a person before a turn."""
    taken = _Taken()
    for turn in newest_first:
        taken.add(turn, make(turn, caps))
        if taken.cost > budget * rules.high_water and taken.units:
            return _cut(taken, budget, rules, caps, make, find_head)
    if not taken.turns or taken.turns[-1].role == USER:
        return Choice(pieces=taken.pieces[::-1], floor=floor)
    found = find_head(taken.turns[-1].number)
    head = make(found, caps) if found else None
    return Choice(pieces=taken.pieces[::-1], floor=floor, head=head)


def _cut(
    taken: _Taken,
    budget: int,
    rules: WindowRules,
    caps: MessageCaps,
    make: MakePiece,
    find_head: Callable[[int], StoredTurn | None],
) -> Choice:
    # How many turns to keep so that the window starts with an exchange; 0: even the newest one is
    # too long.
    low, high = budget * rules.low_water, budget * rules.high_water
    recent = taken.exchanges[: rules.keep_recent]
    fitting = [size for cost, size in taken.exchanges if cost <= low]
    fitting += [size for cost, size in recent if cost <= (low + high) / 2]
    newest = [size for cost, size in taken.exchanges[:1] if cost <= high]
    size = max(fitting, default=0) or max(newest, default=0)
    if size:
        return _fit(taken.turns[:size][::-1], None, budget, caps, make)
    head = (
        find_head(taken.turns[-1].number)
        if not taken.exchanges
        else taken.turns[taken.exchanges[0][1] - 1]
    )
    room = budget * rules.low_water - (make(head, caps).cost if head else 0)
    units = [size for cost, size in taken.units if cost <= room]
    size = units[-1] if units else taken.units[0][1]
    kept = taken.turns[:size][::-1]
    if head is not None and head.number >= kept[0].number:
        head = None
    return _fit(kept, head, budget, caps, make)


def _fit(
    kept: list[StoredTurn],
    head: StoredTurn | None,
    budget: int,
    caps: MessageCaps,
    make: MakePiece,
) -> Choice:
    """Shorten further until the pieces fit: tool results first, then leave out what is attached,
    then shorten messages."""
    for tight in _tighter(caps):
        pieces = [make(turn, tight) for turn in kept]
        first = make(head, tight) if head else None
        if sum(p.cost for p in pieces) + (first.cost if first else 0) <= budget:
            break
    return Choice(
        pieces=pieces, floor=kept[0].number, head=first, tight=tight if tight != caps else None
    )


def _tighter(caps: MessageCaps) -> Iterator[MessageCaps]:
    yield caps
    while caps.result > LEAST_CAP:
        caps = replace(caps, result=caps.result // 2)
        yield caps
    while caps.attached > LEAST_CAP:
        caps = replace(caps, attached=caps.attached // 2)
        yield caps
    while caps.message > LEAST_CAP:
        caps = replace(caps, message=caps.message // 2)
        yield caps
