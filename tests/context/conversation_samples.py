"""Made-up conversation for measuring the recall hint: facts with a later question for
each, ordinary messages that need nothing older, and answers to fill the time between.
The rule was tuned on one half of it; the other half was held out."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "samples"


@dataclass(frozen=True, slots=True)
class Fact:
    """What was said once, and how somebody asks for it much later."""

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
