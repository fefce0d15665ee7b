"""The active path, compared with a plain model that keeps a tree of turns and all old paths."""

from dataclasses import dataclass, field
from itertools import islice, pairwise

from hypothesis import given
from hypothesis import strategies as st

from conversations.domain.active_path import (
    Marker,
    branch_with,
    find_branches,
    find_versions,
    first_difference,
    hidden_ranges,
    merge_ranges,
)

steps = st.lists(
    st.tuples(st.sampled_from(["say", "edit", "reset", "switch"]), st.integers(0, 30)), max_size=40
)


@dataclass
class Tree:
    """A tree of turns. ``path`` holds the active turns, ``left`` those before each marker."""

    last: int = 0
    path: list[int] = field(default_factory=list)
    parents: dict[int, int] = field(default_factory=dict)
    markers: list[Marker] = field(default_factory=list)
    left: list[list[int]] = field(default_factory=list)
    parting: list[int] = field(default_factory=list)
    edited: set[int] = field(default_factory=set)
    is_edited: bool = False

    def say(self) -> None:
        self.last += 1
        self.parents[self.last] = self.path[-1] if self.path else 0
        self.path = [*self.path, self.last]
        if self.is_edited:
            self.edited.add(self.last)
        self.is_edited = False

    def leave(self, path: list[int], low: int, back_to: int | None, *, is_edit: bool) -> None:
        if is_edit:
            self.parting.append(len(self.markers))
        self.is_edited = is_edit
        self.left.append(self.path)
        self.markers.append(Marker(low, self.last, back_to))
        self.path = path

    def take(self, kind: str, place: int) -> None:
        if kind == "say":
            self.say()
        elif kind == "switch":
            gone = [turn for turn in range(1, self.last + 1) if turn not in self.path]
            if gone:
                branch = branch_with(self.markers, gone[place % len(gone)])
                assert branch is not None
                left = self.left[branch.back_to]
                self.leave(left, branch.end + 1, branch.back_to, is_edit=False)
        elif self.path:
            at = place % len(self.path)
            self.leave(self.path[:at], self.path[at], None, is_edit=kind == "edit")
            if kind == "edit":
                self.say()


def apart(ranges: list[tuple[int, int]]) -> set[int]:
    return {number for low, high in ranges for number in range(low, high + 1)}


@given(steps)
def test_path_branches_and_versions_match_the_tree(
    steps: list[tuple[str, int]],
) -> None:
    tree = Tree()
    for step in steps:
        tree.take(*step)
        assert apart(hidden_ranges(tree.markers)) == {*range(1, tree.last + 1)} - {*tree.path}
    for turn in range(1, tree.last + 1):
        branch = branch_with(tree.markers, turn)
        assert (branch is None) == (turn in tree.path)
        if branch is not None:
            was = [path for path in tree.left if turn in path][-1]
            assert [n for n in range(1, branch.end + 1) if n not in apart(branch.hidden)] == was
            assert branch.tip == was[-1]
    branches = list(find_branches(tree.markers))
    leaves = {*tree.parents} - {*tree.parents.values()} - {*tree.path}
    assert {branch.tip for branch in branches} == leaves
    for branch in branches:
        was = tree.left[branch.back_to]
        assert branch.first == next(turn for turn in was if turn not in tree.path)
    children: dict[int, set[int]] = {}
    for turn, parent in tree.parents.items():
        children.setdefault(parent, set()).add(turn)
    shown = find_versions(tree.markers, last=tree.last, parting=tree.parting)
    assert {turn for turns in shown for turn in turns} >= {
        turn for turn in tree.edited if len(children[tree.parents[turn]]) > 1
    }
    for turns in shown:
        assert len({tree.parents[turn] for turn in turns}) == 1
        assert list(turns) == sorted(turns)


ranges = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), max_size=6).map(merge_ranges)


@given(ranges, ranges)
def test_the_first_difference_of_ranges_is_found(
    some: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    assert all(first[1] + 1 < second[0] for first, second in pairwise(some))
    assert first_difference(some, others) == min(apart(some) ^ apart(others), default=2**63 - 1)


class Counted(int):
    """An integer that counts its comparisons."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int.__lt__(self, other)

    def __le__(self, other: int) -> bool:
        Counted.compared += 1
        return int.__le__(self, other)

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int.__gt__(self, other)

    def __ge__(self, other: int) -> bool:
        Counted.compared += 1
        return int.__ge__(self, other)


def comparisons(count: int) -> int:
    """Return how many comparisons find the last ten branches after ``count`` edits."""
    Counted.compared = 0
    ends = [Counted(2 * number) for number in range(1, count + 1)]
    markers = [Marker(end, end, None) for end in ends]
    found = list(islice(find_branches(markers), 10))
    assert [branch.tip for branch in found] == ends[:-11:-1]
    assert [branch.first for branch in found] == ends[:-11:-1]
    return Counted.compared


def test_finding_branches_costs_at_most_the_square_of_the_edits() -> None:
    assert comparisons(200) < 5 * comparisons(100)
