"""People whom a question names, as sides of the conversation."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from django.db.models.functions import Left

from conversations.domain.searchable import role_mark
from conversations.models import Turn

from .matching import TURN_MASK, IndexMatch
from .query import SearchQuery
from .source import IndexSource

# Whose turns a question about a person means.


OTHER = {"user": "assistant", "assistant": "user"}

LEAST = 5  # Turns that have to show it.

AGREEING = 0.85  # Share of the forms of address that come from one side.

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
    """How somebody is spoken to: at the start or after a comma or a greeting, and before a mark."""
    greeting = r"\b(?:hey|hi|hello|dear|thanks|thank you|wow|yeah|yes|no|oh|well|great|sure)\b"
    name = re.escape(name)
    return re.compile(
        rf"(?:^|[,!.?]\s*|{greeting}[, ]+){name}\s*[,!.?:]|,\s*{name}\s*[!.?]", re.IGNORECASE
    )


READ, CHARS = 300, 2000  # Turns with a name that are read, and how much of each.

MAX_NAMES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """``tokens`` are those of the names; ``mark`` is that of the role of the one side
    that is meant, empty where it is none or both."""

    tokens: frozenset[str] = frozenset()
    mark: str = ""


def find_meant(session_pk: int, source: IndexSource, query: SearchQuery) -> Meant:
    """Whose turns the names of the query mean. One statement for each name."""
    names = [term for term in query.words if is_name(term.text)]
    roles, tokens = set[str](), set[str]()
    for term in names[:MAX_NAMES]:
        if not set(term.tokens) <= set(query.tokens):
            continue
        numbers = [pk & TURN_MASK for pk in source.find(IndexMatch(tokens=term.tokens), limit=READ)]
        turns = Turn.objects.filter(session=session_pk, number__in=numbers, role__in=OTHER)
        read = turns.order_by("number").values_list("role", Left("content", CHARS))
        role = find_speaker(term.text, read)
        if role is not None:
            roles.add(role)
            tokens.update(term.tokens)
    mark = role_mark(roles.pop()) if len(roles) == 1 else ""
    return Meant(tokens=frozenset(tokens), mark=mark)
