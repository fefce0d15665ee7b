"""Dates and periods that a question names."""

from datetime import UTC, date, datetime

import pytest

from conversations.domain.searchable import marks_of
from conversations.search.dates import find_dates

TODAY = date(2026, 3, 20)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("what did we do in March", "2024-03-31", "2024-04-01"),
        ("what did we do in March 2025", "2025-03-01", "2024-03-01"),
        ("the talk on 15 March, 2025", "2025-03-17", "2025-03-20"),
        ("the talk on March 15th", "2023-03-15", "2023-03-20"),
        ("the talk on Feb. 29", "2025-02-28", "2025-02-20"),
        ("what was on 2025-11-02", "2025-11-02", "2024-11-02"),
        ("what was in 2025-11", "2025-11-30", "2025-12-01"),
        ("what did I say yesterday", "2026-03-19", "2026-03-20"),
        ("what did I say last week", "2026-03-12", "2026-03-19"),
        ("what did I say two weeks ago", "2026-03-06", "2026-03-12"),
        ("what was it 3 months ago", "2025-12-15", "2026-02-15"),
    ],
)
def test_a_date_or_period_is_found(text: str, inside: str, outside: str) -> None:
    found = find_dates(text, today=TODAY)
    assert found is not None
    marks = [
        " ".join(marks_of(datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC)))
        for day in (inside, outside)
    ]
    assert [found.search(text) is not None for text in marks] == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        *("may we march on", "version 2.1", "999 years agone", "on 2025-13-01", "Marching", ""),
        *("valid until 9999-12-31", "never: 0000-01-01", "first 0001-01-01", "10000-12-31"),
    ],
)
def test_other_words_are_not_read_as_dates(text: str) -> None:
    assert find_dates(text, today=TODAY) is None


@pytest.mark.parametrize("text", ["March 99", "999 years ago", "February 31, 2025", "2024-02-31"])
def test_impossible_dates_raise_no_error(text: str) -> None:
    assert find_dates(text, today=TODAY) is not None


def test_repeated_dates_are_searched_once() -> None:
    once, often = (find_dates("last year in March " * count, today=TODAY) for count in (1, 100))
    assert once == often
