"""A made-up conversation for measuring the recall hint.

It has facts with a later question about each, ordinary messages that need nothing older, and
replies to fill the time between. The rule of the hint was tuned on one half of it, and the
other half was held out.
"""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "samples"


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement, and the question that somebody asks about it much later."""

    said: str
    asked: str


@dataclass(frozen=True, slots=True)
class Half:
    facts: tuple[Fact, ...]
    ordinary: tuple[str, ...]


def read_lines(name: str) -> tuple[str, ...]:
    return tuple((FOLDER / f"{name}.txt").read_text().splitlines())


def read_half(name: str) -> Half:
    facts = tuple(Fact(*line.split(" | ")) for line in read_lines(f"{name}_facts"))
    return Half(facts=facts, ordinary=read_lines(f"{name}_messages"))


TUNING, HELD_OUT = read_half("tuning"), read_half("held_out")
REPLIES = read_lines("replies")
