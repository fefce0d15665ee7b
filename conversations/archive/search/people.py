"""People whom a question names, as sides of the conversation."""

from dataclasses import dataclass

from django.db.models.functions import Left

from conversations.domain.search_query import SearchQuery
from conversations.domain.searchable import role_mark
from conversations.domain.speakers import OTHER, find_speaker, is_name
from conversations.models import Turn

from .matching import TURN_MASK, IndexMatch
from .source import IndexSource

READ, CHARS = 300, 2000
"""Turns with a name that are read, and how much of each."""

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
