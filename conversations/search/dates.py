"""Dates and periods in a question, as patterns for the date marks of turns."""

import re
from calendar import monthrange
from collections.abc import Iterator
from datetime import date, timedelta

from conversations.domain.search_tokens import ENGLISH
from conversations.domain.searchable import DATE_MARK

# People also speak of a day before and after it, so turns of these days around it match too.
MAX_DAYS_AROUND = 3

MONTHS = {name: number for number, name in enumerate(ENGLISH["months"].split(), 1)}
UNIT_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}

_MONTH = "|".join(f"{name[:3]}{name[3:]}|{name[:3]}\\." for name in map(str.capitalize, MONTHS))
_NAMED = re.compile(
    rf"(?:\b(?P<before>\d{{1,2}})(?:st|nd|rd|th)? (?:of )?)?\b(?P<month>{_MONTH})(?!\w)"
    r"(?: (?P<after>\d{1,2})(?:st|nd|rd|th)?\b)?(?:,? (?P<year>(?:19|20)\d\d)\b)?"
)
# Four-digit years from 1000 to 8999, so that the days around a date exist too.
_ISO = re.compile(r"\b([1-8]\d{3})-(\d\d)(?:-(\d\d))?\b")
_NUMBERS = {name: number for number, name in enumerate(ENGLISH["numbers"].split(), 1)}
_AGO = re.compile(
    rf"\b(\d{{1,3}}|an?|{'|'.join(_NUMBERS)}) (day|week|month|year)s? ago\b"
    r"|\blast (week|month|year)\b|\b(yesterday)\b",
    re.IGNORECASE,
)


def find_dates(text: str, *, today: date) -> re.Pattern[str] | None:
    """Return a pattern for the date marks that a text names, or None if it names none.

    A month without a year matches that month of any year. "Two weeks ago" matches the week around
    that day."""
    found = dict.fromkeys([*_find_named(text), *_find_ago(text, today)])
    return re.compile(rf"{DATE_MARK}(?:{'|'.join(found)})(?!\d)") if found else None


def _find_named(text: str) -> Iterator[str]:
    for match in _NAMED.finditer(text):
        name = match["month"].lower()[:3]
        month = next(number for full, number in MONTHS.items() if full.startswith(name))
        day = match["before"] or match["after"]
        yield from _days(match["year"], month, int(day or 0))
    for year, number, day in _ISO.findall(text):
        if 1 <= int(number) <= 12:
            yield from _days(year, int(number), int(day or 0))


def _days(year: str | None, month: int, day: int) -> Iterator[str]:
    if not 1 <= day <= 31:
        yield f"{year or '[0-9]{4}'}{month:02}"
        return
    # For a date without a year, the neighbouring days are those of a leap year.
    middle = date(int(year or 2000), month, min(day, monthrange(int(year or 2000), month)[1]))
    for step in range(-MAX_DAYS_AROUND, MAX_DAYS_AROUND + 1):
        near = middle + timedelta(days=step)
        yield f"{near.year if year else '[0-9]{4}'}{near:%m%d}"


def _find_ago(text: str, today: date) -> Iterator[str]:
    for count, unit, last, yesterday in _AGO.findall(text):
        if yesterday:
            yield f"{today - timedelta(days=1):%Y%m%d}"
            continue
        length = UNIT_DAYS[(unit or last).lower()]
        number = int(count) if count.isdigit() else _NUMBERS.get(count.lower(), 1)
        middle = today - timedelta(days=min(length * number, today.toordinal() - 400))
        for step in range(-(length // 2), length // 2 + 1):
            yield f"{middle + timedelta(days=step):%Y%m%d}"
