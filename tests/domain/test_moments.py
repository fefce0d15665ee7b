"""Marks for time spans: they cover every moment of a span, and no other if they are exact."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.domain.searchable import (
    ALL_TIME,
    FIRST_YEAR,
    LAST_YEAR,
    DateSpan,
    covering_marks,
    marks_of,
)
from tests.properties import costly

moments = st.datetimes(timezones=st.just(UTC))
near = st.timedeltas(timedelta(0), timedelta(days=1000)).map(
    lambda after: datetime(2024, 1, 1, tzinfo=UTC) + after
)
bounds = st.none() | near | moments


@costly
@given(st.one_of(moments, near), bounds, bounds)
def test_a_moment_within_the_span_has_one_of_its_marks(
    moment: datetime, start: datetime | None, end: datetime | None
) -> None:
    marks, is_exact = covering_marks(start, end)
    is_within = (start is None or moment >= start) and (end is None or moment < end)
    is_marked = not set(marks).isdisjoint(marks_of(moment))
    assert is_marked or not is_within
    if is_exact:
        assert is_marked == is_within


@costly
@given(near, near)
def test_whole_days_are_covered_exactly_by_few_marks(one: datetime, other: datetime) -> None:
    start, end = (datetime(m.year, m.month, m.day, tzinfo=UTC) for m in sorted((one, other)))
    marks, is_exact = covering_marks(start, end)
    assert is_exact
    assert len(marks) < 100


@costly
@given(st.one_of(moments, near))
def test_every_moment_is_in_one_part_of_each_span(moment: datetime) -> None:
    span = ALL_TIME
    while parts := list(span.parts()):
        inside = [part for part in parts if part.mark in marks_of(moment)]
        [span] = inside
        assert span.overlaps(moment, moment + timedelta(microseconds=1)) or moment.year == 9999


@pytest.mark.parametrize("year", [1, FIRST_YEAR - 1, LAST_YEAR + 1, 9999])
def test_years_outside_the_range_share_a_mark(year: int) -> None:
    [mark] = marks_of(datetime(year, 5, 6, tzinfo=UTC))
    assert mark == DateSpan((FIRST_YEAR - 1 if year < FIRST_YEAR else LAST_YEAR + 1,)).mark
