"""Comparison of two statements: if they are on the same topic, the later one holds."""

import re
from functools import cache, lru_cache
from typing import NamedTuple

from conversations.domain.search_tokens import STOP_WORDS, read_tokens

from .languages import read_languages

# The share of common tokens from which on one statement repeats or contradicts the other.
MIN_SHARED = 0.75
MIN_SHARED_BESIDE = 0.5  # The share for tokens beside alternatives that differ.
# The shares for two clauses with a value. If two tokens are common, they are a share of all tokens.
# If more are common, they are a share of the shorter clause's tokens and of all tokens. Clauses
# with dates say less, so their common tokens are a share of the shorter clause's tokens.
MIN_SHARED_OF_TWO, MIN_SHARED_OF_LESS, MIN_SHARED_OF_MORE = 0.5, 0.5, 0.35
MIN_SHARED_DATED = 0.6

AMOUNTS = -1  # The group of all amounts.

# A number that counts something (``4 spaces``) and does not name it (``line 4``).
_AMOUNT = re.compile(r"\b\d+(?=[ -][a-z%])", re.IGNORECASE)


class StatementTopic(NamedTuple):
    """The topic of a statement, as tokens.

    ``choices`` are alternatives, of which one holds at a time, each with its group. Amounts are in
    the group ``AMOUNTS``. ``beside`` are the other tokens. ``condition`` are the tokens that say
    when the statement holds.
    """

    tokens: frozenset[str]
    beside: frozenset[str]
    choices: frozenset[tuple[int, str]]
    is_negative: bool
    condition: frozenset[str]


@cache
def _condition() -> re.Pattern[str]:
    """Return a pattern for a condition: a first clause up to a comma, or a clause at the end."""
    languages = read_languages()
    words = "|".join(word for language in languages for word in language.conditions)
    others = (word for language in languages for word in language.regardless)
    none = "".join(rf"(?<!\b{word} )" for word in others)
    return re.compile(rf"^(?:{words})\b[^,]*|{none}\b(?:{words})\b.*", re.IGNORECASE)


@lru_cache(maxsize=2_000)
def topic_of(text: str) -> StatementTopic:
    languages = read_languages()
    without = frozenset[str]().union(*(language.without for language in languages))
    negative = frozenset[str]().union(*(language.negative for language in languages))
    amounts = set(_AMOUNT.findall(text))
    words = read_tokens(text)
    tokens = frozenset(token for token in words if token not in without and token not in STOP_WORDS)
    groups: dict[str, tuple[int, str]] = {}
    for index, language in enumerate(languages):
        groups |= {
            token: (index * 1000 + group, token) for token, group in language.alternatives.items()
        }
    choices = frozenset(
        (AMOUNTS, token) if token in amounts else groups[token]
        for token in tokens
        if token in amounts or token in groups
    )
    beside = tokens - {token for _, token in choices}
    clause = _condition().search(text)
    condition = tokens.intersection(read_tokens(clause[0]) if clause else ())
    return StatementTopic(tokens, beside, choices, not negative.isdisjoint(words), condition)


def is_same_topic(earlier: str, later: str) -> bool:
    """Whether two rules or preferences are on the same topic."""
    a, b = topic_of(earlier), topic_of(later)
    if not a.tokens or not b.tokens:
        return False
    if a.condition - b.condition and b.condition - a.condition:
        return False
    if _shared(a.tokens, b.tokens) >= MIN_SHARED:
        return True
    groups = {group for group, _ in a.choices} & {group for group, _ in b.choices}
    differ = {
        group
        for group in groups
        if {choice for choice in a.choices if choice[0] == group}
        != {choice for choice in b.choices if choice[0] == group}
    }
    if not differ:
        return False
    # Amounts of two things may differ, for example spaces in two kinds of files.
    if differ == {AMOUNTS}:
        words, others = ({t for t in topic.tokens if not t[0].isdigit()} for topic in (a, b))
        if words - others and others - words:
            return False
    return not (a.beside or b.beside) or _shared(a.beside, b.beside) >= MIN_SHARED_BESIDE


def says_less(earlier: str, later: str) -> bool:
    """Whether the later statement only repeats a part of the earlier one, not its opposite."""
    a, b = topic_of(earlier), topic_of(later)
    return a.is_negative == b.is_negative and len(b.tokens) > 1 and b.tokens < a.tokens


def _shared(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b)


@lru_cache(maxsize=2_000)
def name_value(text: str) -> frozenset[str]:
    """Return the words of a clause that name the thing that has the value."""
    without = frozenset[str]().union(*(language.changing for language in read_languages()))
    return frozenset(t for t in topic_of(text).beside - without if not t[0].isdigit())


def is_same_value(earlier: str, later: str, *, is_date: bool) -> bool:
    """Whether two clauses with values name the same thing."""
    a, b = name_value(earlier), name_value(later)
    both = len(a & b)
    if both < 2:
        return both == 1 and a == b
    if is_date:
        return both >= MIN_SHARED_DATED * min(len(a), len(b))
    if both == 2:
        return _shared(a, b) >= MIN_SHARED_OF_TWO
    return both >= MIN_SHARED_OF_LESS * min(len(a), len(b)) and _shared(a, b) >= MIN_SHARED_OF_MORE
