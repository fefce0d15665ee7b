"""Making a quotation small enough, what matters least first (seed 000's order)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from .passages import PASSAGE
from .quotation import QuotedGroup, QuotedMessage

_SHORT, _SHORTER, _NONE = 1_500, 400, 0
_STEPS: tuple[tuple[Callable[[QuotedMessage], bool], int], ...] = (
    (lambda said: said.is_result and not said.is_hit, _SHORT),
    (lambda said: said.is_result and not said.is_hit, _SHORTER),
    (lambda said: said.is_result and said.is_hit, _SHORT),
    (lambda said: said.is_result and not said.is_hit, _NONE),
    (lambda said: not said.is_hit, _SHORTER),
    (lambda said: said.is_hit, _SHORT),
    (lambda said: not said.is_hit, _NONE),
    (lambda said: said.is_hit, _SHORTER),
    (lambda said: said.is_hit, PASSAGE),
)
"""What is shortened, and to how many characters, until all fits: results of tools
first, then the oldest messages; a hit never below its matching passage."""


def fit(groups: Sequence[QuotedGroup], *, budget: int) -> list[QuotedGroup]:
    """The groups within so many estimated tokens: messages are shortened step by step,
    oldest first, and if that does not do, those that are no hits are left out."""
    said = {(g, n): said for g, group in enumerate(groups) for n, said in enumerate(group.said)}
    excess = sum(item.cost() for item in said.values()) - budget
    oldest_first = sorted(said, key=lambda place: (said[place].turn, place))
    for concerns, limit in _STEPS:
        for place in oldest_first:
            if excess <= 0:
                break
            item = said[place]
            if concerns(item):
                said[place] = item.cut(limit)
                excess -= item.cost() - said[place].cost()
    for place in oldest_first:
        if excess > 0 and not said[place].is_hit:
            excess -= said.pop(place).cost()
    return [
        replace(group, said=[said[g, n] for n in range(len(group.said)) if (g, n) in said])
        for g, group in enumerate(groups)
    ]
