"""Whose turns a question about a person means.

Who is called Ann is seen from how the two sides of a conversation speak: her turns
begin with "Ann:", or the other side addresses her ("Thanks, Ann!"). A question that
names her is more likely answered by what she says than by what is said to her.
"""

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

OTHER = {"user": "assistant", "assistant": "user"}

LEAST = 5
"""Turns that have to show it."""

AGREEING = 0.85
"""Share of the forms of address that come from one side."""

_NAME = re.compile(r"[^\W\d_]+")


def is_name(word: str) -> bool:
    """Whether a word of a question can be a person's name: a capital and small letters."""
    return len(word) > 1 and word.istitle() and _NAME.fullmatch(word) is not None


def find_speaker(name: str, turns: Iterable[tuple[str, str]]) -> str | None:
    """The role of the person with this name, from roles and texts of turns that have
    it; None where they do not show it."""
    headed: Counter[str] = Counter()
    addressed: Counter[str] = Counter()
    address = _address(name)
    for role, text in turns:
        if role not in OTHER:
            continue
        if text.startswith(f"{name}:"):
            headed[role] += 1
        elif address.search(text):
            addressed[role] += 1
    if len(headed) == 1 and headed.total() >= LEAST:
        return next(iter(headed))
    for role, count in addressed.most_common(1):
        if addressed.total() >= LEAST and count >= AGREEING * addressed.total():
            return OTHER[role]
    return None


@lru_cache(maxsize=256)
def _address(name: str) -> re.Pattern[str]:
    """How somebody is spoken to: at the start or after a comma or a greeting, and
    before a mark."""
    greeting = r"\b(?:hey|hi|hello|dear|thanks|thank you|wow|yeah|yes|no|oh|well|great|sure)\b"
    name = re.escape(name)
    return re.compile(
        rf"(?:^|[,!.?]\s*|{greeting}[, ]+){name}\s*[,!.?:]|,\s*{name}\s*[!.?]", re.IGNORECASE
    )
