"""Message trees as sessions: every message is in one, and a grown tree extends them."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.features.interchange.lines import ImportHistory
from conversations.features.interchange.trees import MessageTree, TooBranched, TreePath
from tests.properties import costly

MAIN = UUID(int=1)

type Parents = list[int | None]
"""The parent of each node. A node comes after its parent."""


@st.composite
def parents(draw: st.DrawFn, size: int = 12) -> Parents:
    found: Parents = [None]
    for number in range(1, draw(st.integers(1, size))):
        found.append(draw(st.one_of(st.integers(0, number - 1), st.none())))
    return found


def plan(told: Parents, leaf: int, archive: ImportHistory | None = None) -> list[TreePath]:
    tree = MessageTree(MAIN, "branch", leaf=str(leaf))
    for number, above in enumerate(told):
        tree.parents[str(number)] = None if above is None else str(above)
    return tree.plan(archive or ImportHistory())


def way_to(told: Parents, number: int) -> list[str]:
    above = told[number]
    return [*(way_to(told, above) if above is not None else []), str(number)]


def remember(paths: list[TreePath], *, continued: frozenset[UUID] = frozenset()) -> ImportHistory:
    """Return the import history after these sessions were imported."""
    ends = {path.uuid: path.nodes[-1] for path in paths}

    class Remembering(ImportHistory):
        def last_imported_node(self, uuid: UUID) -> tuple[str, bool] | None:
            return (ends[uuid], uuid in continued) if uuid in ends else None

    return Remembering()


@given(told=parents(), data=st.data())
def test_every_message_is_in_a_session_with_all_its_ancestors(
    told: Parents, data: st.DataObject
) -> None:
    leaf = data.draw(st.integers(0, len(told) - 1))
    paths = plan(told, leaf)
    assert {node for path in paths for node in path.nodes} == {str(n) for n in range(len(told))}
    assert all(path.nodes == way_to(told, int(path.nodes[-1])) for path in paths)
    assert str(leaf) in paths[0].nodes
    assert len({path.uuid for path in paths}) == len(paths)


@given(told=parents(), data=st.data())
def test_a_fork_shares_its_first_messages_with_its_parent(
    told: Parents, data: st.DataObject
) -> None:
    paths = plan(told, data.draw(st.integers(0, len(told) - 1)))
    known: dict[UUID | None, list[str]] = {}
    for path in paths:
        if path.shared:
            assert known[path.parent][: path.shared] == path.nodes[: path.shared]
        new = path.nodes[path.shared :]
        assert not any(node in nodes for nodes in known.values() for node in new)
        known[path.uuid] = path.nodes


@costly
@given(told=parents(8), more=parents(8), data=st.data())
def test_a_grown_tree_only_appends_to_its_sessions(
    told: Parents, more: Parents, data: st.DataObject
) -> None:
    """The person may be at another message, and the sessions may have been continued here."""
    before = plan(told, data.draw(st.integers(0, len(told) - 1)))
    above = [data.draw(st.integers(0, len(told) + n - 1)) for n in range(len(more))]
    grown = [*told, *above]
    continued = frozenset(data.draw(st.sets(st.sampled_from([path.uuid for path in before]))))
    archive = remember(before, continued=continued)
    after = {path.uuid: path.nodes for path in plan(grown, len(grown) - 1, archive)}
    for path in before:
        assert after[path.uuid][: len(path.nodes)] == path.nodes
        assert path.uuid not in continued or after[path.uuid] == path.nodes
    assert {node for nodes in after.values() for node in nodes} == {
        str(n) for n in range(len(grown))
    }


@given(told=st.dictionaries(st.integers(0, 6), st.integers(0, 8), min_size=1))
def test_a_tree_with_cycles_has_each_message_in_a_session(told: dict[int, int]) -> None:
    tree = MessageTree(MAIN, "branch")
    tree.parents = {str(node): str(above) for node, above in told.items()}
    paths = tree.plan(ImportHistory())
    assert {node for path in paths for node in path.nodes} == {str(node) for node in told}


def test_a_tree_with_too_many_branches_is_refused() -> None:
    """The tree is a chain in which each message has two answers.

    There would be as many sessions as messages, each with all messages before its own.
    """
    told: Parents = [None]
    for number in range(1, 3_000):
        told += [2 * number - 2, 2 * number - 2]
    with pytest.raises(TooBranched):
        plan(told, leaf=0)
    assert len(plan(told[:200], leaf=0)) == 100
