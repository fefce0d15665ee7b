"""Plots of usage by day, as numbers for an SVG: the template draws them.

A plot is stretched to the width that it has, so it holds bars and no words; those stand
around it as text, and the table below it says the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from conversations.rendering.source_text import duration_text, number_text

from .figures import Sums

HEIGHT = 100
SLOT, BAR = 10, 8
"""The width of a day, and of its bar."""


@dataclass(frozen=True, slots=True)
class BarSegment:
    """One piece of a bar; ``kind`` numbers its colour."""

    kind: int
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    x: int
    title: str
    parts: list[BarSegment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """``kinds`` name the colours, from the bottom of a bar to its top; ``summary`` says in
    a sentence what is to be seen."""

    name: str
    kinds: Sequence[str]
    top: str
    summary: str
    bars: list[Bar]

    @property
    def width(self) -> int:
        return len(self.bars) * SLOT


def all_days(first: date, last: date) -> list[date]:
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def make_plots(days: Mapping[date, Sums], *, first: date, last: date) -> list[Plot]:
    """Cost, tokens and the time to the first token by day; only what there is any of."""
    shown = [(day, days.get(day, Sums())) for day in all_days(first, last)]
    plots = [
        _plot("Cost", ("Cost",), shown, lambda sums: (sums.cost_microusd,), usd),
        _plot("Tokens", ("Answered", "Given", "From the cache"), shown, _tokens, number_text),
        _plot("Time to the first token", ("Median", "p95"), shown, _times, duration_text),
    ]
    return [plot for plot in plots if plot is not None]


def usd(microusd: int) -> str:
    """Dollars and cents; small sums with four decimals."""
    dollars = microusd / 1_000_000
    if not microusd or dollars >= 1000:
        return f"${number_text(round(dollars))}" if microusd else "$0"
    return f"${dollars:.2f}" if dollars >= 0.1 else f"${dollars:.4f}"


def _tokens(sums: Sums) -> tuple[int, ...]:
    given = sums.input_tokens + sums.cache_write_tokens
    return sums.output_tokens, given, sums.cache_read_tokens


def _times(sums: Sums) -> tuple[int, ...]:
    median, slow = sums.median_ms or 0, sums.p95_ms or 0
    return median, slow - median


def _plot(
    name: str,
    kinds: Sequence[str],
    days: Sequence[tuple[date, Sums]],
    values_of: Callable[[Sums], tuple[int, ...]],
    words: Callable[[int], str],
) -> Plot | None:
    values = [values_of(sums) for _, sums in days]
    most = max(map(sum, values), default=0)
    if not most:
        return None
    peak = days[[sum(parts) for parts in values].index(most)][0]
    said = f"{name} by day, {len(days)} days from {days[0][0]}: most on {peak}, {words(most)}."
    bars = [
        Bar(
            x=number * SLOT,
            title=f"{day}: {words(sum(parts))}",
            parts=_stack(parts, most=most),
        )
        for number, ((day, _), parts) in enumerate(zip(days, values, strict=True))
    ]
    return Plot(name=name, kinds=kinds, top=words(most), summary=said, bars=bars)


def _stack(values: Sequence[int], *, most: int) -> list[BarSegment]:
    parts: list[BarSegment] = []
    top = float(HEIGHT)
    for kind, value in enumerate(values, start=1):
        if value:
            height = max(0.5, HEIGHT * value / most)
            top -= height
            parts.append(BarSegment(kind, round(top, 2), round(height, 2)))
    return parts
