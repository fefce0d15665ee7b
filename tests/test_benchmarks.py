"""What the benchmarks make of what they measure; the measurements themselves run by themselves."""

from collections import Counter

import pytest

from benchmarks.figures import Figure, markdown_table, median, percentile
from benchmarks.groups.imports import make_lines
from benchmarks.groups.sessions import count_sessions
from conversations.domain.turns import NewTurn


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


def test_what_is_imported_has_the_rows_of_an_export() -> None:
    turns = [NewTurn(role="user", content="Roses?"), NewTurn(role="assistant", content="In May.")]
    lines = list(make_lines(turns * 3))
    assert Counter(line["type"] for line in lines) == {"session": 1, "turn": 6, "event": 9}
    events = [line for line in lines if line["type"] == "event"]
    assert [line["seq"] for line in events] == list(range(1, 10))
    assert [line["turn"] for line in events] == [1, 2, 2, 3, 4, 4, 5, 6, 6]
    assert events[1]["payload"] == {"v": 1, "text": "In May."}
