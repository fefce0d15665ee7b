"""Choosing the turns: from the floor to the newest, within the budget.

The floor moves only when the history passes the high-water mark, and then to the
start of an exchange near the low-water mark, so that what stands in front of the
newest turns stays the same from call to call and the provider's cache serves it.

An exchange that is longer than the budget by itself is cut inside, between a call's
results and the next call; the person's message that began it is then the head.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from conversations.domain.turns import ASSISTANT, USER, StoredTurn
from conversations.domain.windows import WindowRules

from .messages import MessageCaps, Piece

LEAST_CAP = 8
"""Estimated tokens to which everything is shortened before a window counts as full."""

type MakePiece = Callable[[StoredTurn, MessageCaps], Piece]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``pieces`` in order, from the floor on. ``head``: a message below the floor that
    is given too. ``tight``: lower caps, where one exchange was still too much."""

    pieces: list[Piece]
    floor: int
    head: Piece | None = None
    tight: MessageCaps | None = None


@dataclass(slots=True)
class _Taken:
    """Turns from the newest back. ``exchanges`` and ``units`` are the places where a
    window can start: the cost and the number of turns from there on."""

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
    """``newest_first`` are the active turns down to the floor, ``find_head`` gives the
    last message of a person before a turn."""
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
    size = _pick_exchange(taken, budget, rules)
    if size:
        return _fit(taken.turns[:size][::-1], None, budget, caps, make)
    head = find_head(taken.turns[-1].number) if not taken.exchanges else _newest_user(taken)
    room = budget * rules.low_water - (make(head, caps).cost if head else 0)
    units = [size for cost, size in taken.units if cost <= room]
    size = units[-1] if units else taken.units[0][1]
    kept = taken.turns[:size][::-1]
    if head is not None and head.number >= kept[0].number:
        head = None
    return _fit(kept, head, budget, caps, make)


def _pick_exchange(taken: _Taken, budget: int, rules: WindowRules) -> int:
    """How many turns to keep so that the window starts with an exchange; 0: even the
    newest one is too long."""
    low, high = budget * rules.low_water, budget * rules.high_water
    recent = taken.exchanges[: rules.keep_recent]
    fitting = [size for cost, size in taken.exchanges if cost <= low]
    fitting += [size for cost, size in recent if cost <= (low + high) / 2]
    newest = [size for cost, size in taken.exchanges[:1] if cost <= high]
    return max(fitting, default=0) or max(newest, default=0)


def _newest_user(taken: _Taken) -> StoredTurn:
    return taken.turns[taken.exchanges[0][1] - 1]


def _fit(
    kept: list[StoredTurn],
    head: StoredTurn | None,
    budget: int,
    caps: MessageCaps,
    make: MakePiece,
) -> Choice:
    """Shorten further until the pieces fit: tool results first, then leave out what is
    attached, then shorten messages."""
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
