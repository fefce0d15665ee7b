"""Measured values with their goals and with the limits of the machine."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured value. A figure without a goal is shown for comparison.

    ``limit`` is the value that the same machine reached without the product in the same run.
    """

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    limit: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met, or None if there is no goal."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least

    @property
    def goal(self) -> str:
        if self.at_most is not None:
            return f"≤ {number_text(self.at_most)}"
        return "" if self.at_least is None else f"≥ {number_text(self.at_least)}"

    @property
    def ratio(self) -> float | None:
        """The value divided by the limit."""
        return self.value / self.limit if self.limit else None

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"is_met": self.is_met, "ratio": self.ratio}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value at or below which ``share`` of the values lie (nearest rank).

    Return 0 if there are no values.
    """
    return sorted(values)[ceil(share * len(values)) - 1] if values else 0.0


def median(values: Sequence[float]) -> float:
    """Return the median, or 0 if there are no values."""
    return statistics.median(values) if values else 0.0


def number_text(value: float) -> str:
    """Return the number as text, rounded to an integer or to three significant digits."""
    if value == int(value) and abs(value) < 10_000_000:
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


_VERDICTS = {True: "met", False: "MISSED", None: ""}


def format_table(group: str, figures: Sequence[Figure]) -> str:
    """Return a group's figures as a table for a terminal."""
    width = max((len(figure.name) for figure in figures), default=0)
    heads = f"{'measured':>12} {'unit':<6}{'goal':>10}{'limit':>10}{'ratio':>8}"
    lines = [f"{group:<{width + 2}}{heads}"]
    for figure in figures:
        limit, ratio = (number_text(n) if n else "" for n in (figure.limit, figure.ratio))
        lines.append(
            f"  {figure.name:<{width}}{number_text(figure.value):>12} {figure.unit:<6}"
            f"{figure.goal:>10}{limit:>10}{ratio:>8}  {_VERDICTS[figure.is_met]}".rstrip()
        )
    return "\n".join(lines)


def markdown_table(runs: Sequence[Sequence[Figure]]) -> Iterator[str]:
    """Yield the lines of a Markdown table of the figures that have a goal or a limit.

    For several runs the table shows the median and the range.
    """
    yield "| what | goal | measured | limit | measured / limit |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for row in zip(*runs, strict=True):
        first = row[0]
        if first.goal or first.limit:
            unit = f" {first.unit}" if first.unit else ""
            cells = [
                first.name,
                f"{first.goal}{unit}" if first.goal else "",
                _spread([figure.value for figure in row]) + unit,
                _spread([figure.limit for figure in row if figure.limit]),
                _spread([figure.ratio for figure in row if figure.ratio]),
            ]
            yield f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return "".join(map(number_text, values))
    low, high = number_text(min(values)), number_text(max(values))
    return f"{number_text(median(values))} ({low}–{high})"
