"""Plots of usage by day, as numbers for an SVG: the template draws them.

A plot is stretched to the width that it has, so it holds bars and no words; those stand
around it as text, and the table below it says the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
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


def usd(microusd: int) -> str:
    """Dollars and cents; small sums with four decimals."""
    dollars = microusd / 1_000_000
    if not microusd or dollars >= 1000:
        return f"${number_text(round(dollars))}" if microusd else "$0"
    return f"${dollars:.2f}" if dollars >= 0.1 else f"${dollars:.4f}"


PLOTTED: tuple[
    tuple[str, Sequence[str], Callable[[Sums], Sequence[int]], Callable[[int], str]], ...
]
PLOTTED = (
    ("Cost", ("Cost",), lambda sums: (sums.cost_microusd,), usd),
    (
        "Tokens",
        ("Answered", "Given", "From the cache"),
        lambda sums: (
            sums.output_tokens,
            sums.input_tokens + sums.cache_write_tokens,
            sums.cache_read_tokens,
        ),
        number_text,
    ),
    (
        "Time to the first token",
        ("Median", "p95"),
        lambda sums: (sums.median_ms or 0, (sums.p95_ms or 0) - (sums.median_ms or 0)),
        duration_text,
    ),
)
"""Name, kinds, the values of a bar in the order of the kinds, and how one is said."""


def make_plots(days: Mapping[date, Sums], *, first: date, last: date) -> Iterator[Plot]:
    """By day; only what there is any of."""
    shown = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    for name, kinds, values_of, words in PLOTTED:
        values = [values_of(days.get(day, Sums())) for day in shown]
        most = max(map(sum, values))
        if most:
            peak = shown[[sum(parts) for parts in values].index(most)]
            yield Plot(
                name=name,
                kinds=kinds,
                top=words(most),
                summary=f"{name} by day, {len(shown)} days from {first}: most on {peak},"
                f" {words(most)}.",
                bars=[
                    Bar(number * SLOT, f"{day}: {words(sum(parts))}", _stack(parts, most=most))
                    for number, (day, parts) in enumerate(zip(shown, values, strict=True))
                ],
            )


def _stack(values: Sequence[int], *, most: int) -> list[BarSegment]:
    parts: list[BarSegment] = []
    top = float(HEIGHT)
    for kind, value in enumerate(values, start=1):
        if value:
            height = max(0.5, HEIGHT * value / most)
            top -= height
            parts.append(BarSegment(kind, round(top, 2), round(height, 2)))
    return parts
