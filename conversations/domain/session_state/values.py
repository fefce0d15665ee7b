"""Recognition of values in a person's message: amounts, dates and times in their clauses.

A later value can replace an earlier one. Its clause says that the value is new, or it names the
same thing as an earlier clause, with another value.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from conversations.domain.text import one_line

from .languages import Language, read_languages
from .statements import read_sentences
from .topics import name_value

MAX_VALUES_IN_MESSAGE, MAX_QUANTITIES_IN_SENTENCE, MAX_VALUE_SENTENCE_CHARS = 4, 20, 2_000
MAX_CLAUSE_CHARS = 90
MAX_TAIL_CHARS = 40  # Of a clause after its value. Longer text is mostly about something else.
MAX_OWNER_CHARS = 12  # Of the text before a clause that may name the owner of the value.
DATES = frozenset(("date", "clock"))  # Kinds of amounts that are dates or times.
AIM = "aim/"  # The prefix of the kind of a value that the person wants to reach.
MIN_NAMING_WORDS = 2  # Of the words in a clause that name the thing that has the value.

_FORMULA = re.compile(r"[=^\\{}`<>|_∑≥≤²³×√]|\w\(|\)\w|->")
_NAMED = re.compile(r"(?:[A-Z]\w*|\bv|#|[\w)]-|[./])\s?$")  # Before a version or part of a name.
# Words after which a count is a value even without a noun.
_LEADS_TO = re.compile(r"\b(?:to|at|of|is|reached|by)\s(?:around |about |just |only )?$")
_WORD_AFTER = re.compile(
    r"[\s-](?!(?:and|or|as|to|in|on|with|for|is|are|of|at|by|after|from"
    r"|before|per|than|but|so|that|which|when|if|can|while|because|until|using)\b)[a-z]"
)
_DIGIT = re.compile(r"\d")
_YEAR = re.compile(r"(?:19|20)\d\d")
_NUMBER = re.compile(r"[\d.,\s-]+")


class StatedValue(NamedTuple):
    """A value that a person states.

    ``amounts`` have the kind and the value of each amount. ``is_changed`` means that the clause
    itself says that the value was different before. ``is_own`` means that the clause names an owner
    of the value.
    """

    text: str
    amounts: tuple[str, ...]
    is_changed: bool
    is_own: bool


def find_values(text: str) -> tuple[StatedValue, ...]:
    """Return the values that this message states, at most four, changed values first."""
    found: dict[str, StatedValue] = {}
    for sentence in read_sentences(text):
        for value in _read_sentence(sentence[:MAX_VALUE_SENTENCE_CHARS]):
            found.setdefault(value.text.casefold(), value)
    ordered = sorted(found.values(), key=lambda value: not value.is_changed)
    return tuple(ordered[:MAX_VALUES_IN_MESSAGE])


def _read_sentence(sentence: str) -> Iterator[StatedValue]:
    for language in read_languages():
        if not language.countable.search(sentence):
            continue
        for (low, high), amounts in _find_clauses(sentence, language).items():
            clause = sentence[low:high].strip(" ,;:.!?*'’-")
            kinds = {amount.partition(" ")[0] for amount, _ in amounts}
            is_changed = any(changed for _, changed in amounts)
            if kinds <= DATES:
                is_named_day = not any(_DIGIT.search(amount) for amount, _ in amounts)
                if not language.dated.search(clause) or (is_named_day and not is_changed):
                    continue
            naming_words = name_value(clause)
            with_owner = sentence[max(0, low - MAX_OWNER_CHARS) : high]
            if not is_changed and (language.events.search(with_owner) or _is_shape(amounts)):
                continue
            if language.aimed.search(clause):
                # A value that the person wants to reach is not the current value.
                amounts = [(f"{AIM}{amount}", changed) for amount, changed in amounts]
            is_own = language.owned.search(with_owner) is not None
            is_told = is_changed or is_own or language.told.search(clause)
            if len(naming_words) < (1 if is_changed else MIN_NAMING_WORDS) or not is_told:
                continue
            if _FORMULA.search(clause) or language.untold.search(sentence, max(0, low - 30), high):
                continue
            text = one_line(clause, limit=MAX_CLAUSE_CHARS)
            yield StatedValue(text, tuple(amount for amount, _ in amounts), is_changed, is_own)


def _find_clauses(
    sentence: str, language: Language
) -> dict[tuple[int, int], list[tuple[str, bool]]]:
    """Return the amounts of the sentence by the start and end of their clauses.

    Each amount comes with whether the words beside it say that the value is new.
    """
    clauses: dict[tuple[int, int], list[tuple[str, bool]]] = {}
    span = (0, 0)
    for match in islice(language.quantity.finditer(sentence), MAX_QUANTITIES_IN_SENTENCE):
        kind, amount = match.lastgroup or "", match[0].strip()
        if kind == "measure":
            if sentence.startswith("-old", match.end()):
                continue
            spelled = _NUMBER.sub("", amount).casefold()
            unit = language.units.get(spelled, spelled)
            kind, amount = f"{kind}/{unit}", amount[: -len(spelled)].rstrip() + unit
        elif kind == "count" and not _is_count(sentence, match):
            continue
        if clauses and match.start() < span[1]:
            clauses[span].append((f"{kind} {amount}", False))
            continue
        span = _bounds_of_clause(sentence, match.start(), match.end(), language)
        # The words that say that the value is new may be left out of the clause.
        before = sentence[max(0, span[0] - MAX_OWNER_CHARS) : match.start()]
        is_changed = (
            language.changed.search(before) is not None
            or language.new_since.match(sentence, match.end(), span[1] + 12) is not None
        )
        clauses.setdefault(span, []).append((f"{kind} {amount}", is_changed))
    return clauses


def _is_count(sentence: str, match: re.Match[str]) -> bool:
    """Whether a number without a unit counts something, and is no year and no part of a name."""
    before = sentence[max(0, match.start() - MAX_CLAUSE_CHARS) : match.start()]
    if (_NAMED.search(before) and match.start()) or _YEAR.fullmatch(match[0]):
        return False
    if not _WORD_AFTER.match(sentence, match.end()) and not _LEADS_TO.search(before):
        return False
    # A number with a hyphen describes a kind of thing, such as ``6-sided``.
    return not sentence.startswith("-", match.end())


def _is_shape(amounts: list[tuple[str, bool]]) -> bool:
    """Whether all amounts only describe a kind of thing (``6-sided``, ``30-minute``)."""
    return all("-" in amount and amount[-1].isalpha() for amount, _ in amounts)


def _bounds_of_clause(sentence: str, start: int, end: int, language: Language) -> tuple[int, int]:
    """Return the start and end of the value's clause."""
    low = max(0, end - MAX_CLAUSE_CHARS)
    if low:
        low = max(low, sentence.find(" ", low, start) + 1)
    for border in language.borders.finditer(sentence, low, start):
        low = border.end()
    low += language.opening.match(sentence[low:start]).end()  # type: ignore[union-attr]
    limit = max(end, min(low + MAX_CLAUSE_CHARS, end + MAX_TAIL_CHARS))
    border_after = language.borders.search(sentence, end, limit + 20)
    high = border_after.start() if border_after else len(sentence)
    if high > limit:
        high = max(end, sentence.rfind(" ", end, limit))
    return low, high
