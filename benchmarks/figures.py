"""What was measured, next to what was promised."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value. Without a target it is there for comparison."""

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def is_met(self) -> bool | None:
        """None: there is no target."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least

    @property
    def target(self) -> str:
        if self.at_most is not None:
            return f"≤ {number_text(self.at_most)}"
        return "" if self.at_least is None else f"≥ {number_text(self.at_least)}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"is_met": self.is_met}


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of them lie, by nearest rank; 0 for none."""
    if not values:
        return 0.0
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def number_text(value: float) -> str:
    """Three digits that matter."""
    if value == int(value) and abs(value) < 10_000_000:
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


_VERDICTS = {True: "met", False: "MISSED", None: ""}


def format_table(group: str, figures: Sequence[Figure]) -> str:
    """A group's figures, aligned for a terminal."""
    width = max(len(figure.name) for figure in figures)
    lines = [f"{group:<{width + 2}}{'measured':>12} {'unit':<6}{'target':>10}"]
    lines += [
        f"  {figure.name:<{width}}{number_text(figure.value):>12} {figure.unit:<6}"
        f"{figure.target:>10}  {_VERDICTS[figure.is_met]}".rstrip()
        for figure in figures
    ]
    return "\n".join(lines)
