"""What the benchmarks make of what they measure; the measurements themselves run by themselves."""

import pytest

from benchmarks.figures import Figure, markdown_table, median, percentile
from benchmarks.groups.sessions import count_sessions


@pytest.mark.parametrize(
    ("count", "share", "rank"),
    [(1, 0.95, 1), (2, 0.5, 1), (20, 0.95, 19), (100, 0.95, 95), (100, 0.99, 99), (25, 0.95, 24)],
)
def test_a_percentile_is_the_smallest_value_with_its_share_at_or_below(
    count: int, share: float, rank: int
) -> None:
    assert percentile(range(count, 0, -1), share) == rank
    assert percentile([], share) == 0


def test_the_median_of_an_even_number_lies_between_the_two_in_the_middle() -> None:
    assert (median([4, 1, 2, 9]), median([3, 1, 2]), median([])) == (3, 2, 0)
    runs = [[Figure(name="x", value=value, at_most=9)] for value in (2, 4)]
    assert "| x | ≤ 9 | 3 (2–4) |  |  |" in markdown_table(runs)


def test_a_session_that_is_named_several_times_is_counted_once() -> None:
    html = "".join(f"<li><a title='Session number {n}'>Session number {n}</a>" for n in (1, 2, 12))
    assert count_sessions(html) == 3
