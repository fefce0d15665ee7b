"""Rebuilding session states: the turns and edits of any session give its stored state."""

from collections.abc import Callable
from dataclasses import dataclass, field
from io import StringIO
from threading import Thread
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from conversations.archive.append import NewEvent, append
from conversations.archive.branches import list_branches, use_branch
from conversations.archive.rewinds import append_rewind
from conversations.archive.session_state import (
    StateText,
    active_turns,
    behind_sessions,
    check_state,
    edit_state,
    read_state_text,
    read_state_view,
    read_stored_state,
    rebuild_behind_states,
    rebuild_state,
    rebuild_state_text,
)
from conversations.archive.sessions import create_session, get_session
from conversations.archive.state_updates import read_facts_of
from conversations.archive.turns import read_markers, read_rewound
from conversations.domain.active_path import branch_with
from conversations.domain.errors import Unavailable
from conversations.domain.events import Info
from conversations.domain.session_state import PREFIX, SessionState
from conversations.domain.session_state.facts import fold_facts
from conversations.models import Session, StateCheckpoint, Workspace
from tests.properties import costly

from .state_story import answer, calls, message, result, used, write

pytestmark = pytest.mark.django_db

TEXTS = [
    "We use tabs",
    "never commit to main",
    "Hello",
    "ok",
    "Let's go with roses: \"red\" # not 'blue'\u2028",
    "あ" * 40,
]
PATHS = ["a.py", "b c.py", "true", "- x: {y}"]

turn = st.one_of(
    st.sampled_from(TEXTS).map(message),
    st.just(answer()),
    st.tuples(
        st.sampled_from(["write_file", "edit_file", "read_file", "delete_file"]),
        st.sampled_from(PATHS),
    ).map(lambda call: calls((call[0], {"path": call[1]}))),
    st.sampled_from(["pytest", "git commit -m Roses", "make"]).map(
        lambda command: calls(("shell_execute", {"command": command}))
    ),
    st.builds(
        lambda ok: result("ValueError: no" if not ok else "fine", name="shell_execute", ok=ok),
        st.booleans(),
    ),
)
step = st.one_of(
    st.tuples(st.just("turns"), st.lists(turn, min_size=1, max_size=130)),
    st.tuples(st.just("turn"), turn),
    st.tuples(
        st.just("edit"),
        st.tuples(
            st.sampled_from(["pin", "unpin", "strike", "unstrike", "edit"]), st.integers(0, 30)
        ),
    ),
    st.tuples(st.just("rewind"), st.integers(0, 60)),
    st.tuples(st.just("switch"), st.integers(0, 5)),
)


def items_of(text: StateText) -> list[str]:
    """Return the lines of the text without the count of the session's turns."""
    return [line for line in text.yaml.splitlines() if "turn_count:" not in line]


@dataclass(slots=True)
class Life:
    """A session that is written to, and the states that it had after each step."""

    session: Session
    seen: list[tuple[StateText, int]] = field(default_factory=list)

    def live(self, kind: str, value: Any) -> None:
        if kind == "turns":
            append(self.session.pk, session_uuid=self.session.uuid, turns=value)
        elif kind == "turn":
            write(self.session, value)
        elif kind == "edit":
            self.edit(*value)
        elif kind == "switch":
            self.switch(value)
        else:
            count = get_session(self.session.uuid).turn_count
            append_rewind(
                self.session,
                from_turn=max(1, count - value),
                from_seq=None,
                reason="reset",
                actor_pk=None,
            )
        rewinds = get_session(self.session.uuid).rewind_count
        self.seen.append((read_state_text(self.session.pk), rewinds))

    def switch(self, place: int) -> None:
        """Switch to a branch and check that its state is the one with which it was left.

        Do nothing if the session has no branches.
        """
        branches = list_branches(get_session(self.session.uuid))
        if branches:
            branch = branches[place % len(branches)]
            markers = read_markers(self.session.pk, "turn")
            left = branch_with(markers, branch.turn)
            assert left is not None
            use_branch(self.session, turn=branch.turn, actor_pk=None)
            was = [text for text, rewinds in self.seen if rewinds == left.back_to][-1]
            assert items_of(read_state_text(self.session.pk)) == items_of(was)

    def edit(self, action: str, place: int) -> None:
        view = read_state_view(self.session.pk)
        items = [item for item in (*view.items, *view.struck) if action in item.actions]
        if items:
            item = items[place % len(items)]
            edit_state(self.session, actor_pk=None, action=action, item=item.id, text="Other words")


def assert_items_are_those_of_the_path(session_pk: int) -> None:
    """Compare the stored items with those of all turns on the active path, without checkpoints."""
    stored, state = read_stored_state(session_pk), SessionState()
    gone = read_rewound(session_pk, "turn")
    for turn in active_turns(session_pk, 0, stored.moment.turn, gone):
        state = fold_facts(state, turn.number, read_facts_of(turn))
    loaded = stored.load()
    assert loaded is not None
    assert loaded._replace(marks=(), edit_seq=0) == state._replace(marks=(), edit_seq=0)


@costly
@given(steps=st.lists(step, min_size=1, max_size=14))
def test_state_of_any_history_can_be_rebuilt(
    workspace: Workspace, user: User, steps: list[Any]
) -> None:
    life = Life(create_session(workspace, owner=user))
    for kind, value in steps:
        life.live(kind, value)
    assert check_state(life.session.pk) == ""
    assert_items_are_those_of_the_path(life.session.pk)
    for text, rewinds in life.seen:
        then = rebuild_state_text(life.session.pk, turn=text.turn, seq=text.seq, rewinds=rewinds)
        assert then == text
    StateCheckpoint.objects.filter(session=life.session).delete()
    Session.objects.filter(pk=life.session.pk).update(state="{}", state_turn=0)
    assert read_state_text(life.session.pk).turn == life.seen[-1][0].turn
    rebuild_state(life.session.pk)
    assert check_state(life.session.pk) == ""
    assert read_state_text(life.session.pk) == life.seen[-1][0]


def test_early_state_is_rebuilt_from_few_rows_of_a_long_session(session: Session) -> None:
    append(session.pk, session_uuid=session.uuid, turns=[message(f"row {n}") for n in range(990)])
    with CaptureQueriesContext(
        connection,
    ) as queries:
        text = rebuild_state_text(session.pk, turn=755, seq=0, rewinds=0)
    assert 'current_focus: "row 754"' in text.yaml
    reading = [query["sql"] for query in queries if "conversations_turn" in query["sql"]]
    assert len(reading) <= 4
    assert all("LIMIT" in sql for sql in reading)


def test_session_without_a_stored_state_is_read_and_rebuilt(session: Session) -> None:
    write(session, message("We use tabs"), *used("read_file", {"path": "a.py"}))
    before = read_state_text(session.pk)
    Session.objects.filter(pk=session.pk).update(state="{}", state_turn=0)
    assert read_state_text(session.pk) == before
    write(session, message("Water the beans"))
    assert 'current_focus: "Water the beans"' in read_state_text(session.pk).yaml
    assert list(behind_sessions()) == [session]
    rebuild_behind_states()
    assert list(behind_sessions()) == []
    assert check_state(session.pk) == ""


def test_edit_of_a_session_without_a_stored_state_is_kept(session: Session) -> None:
    write(session, message("We use tabs"))
    Session.objects.filter(pk=session.pk).update(state="{}", state_turn=0)
    edit_state(session, actor_pk=None, action="strike", item="d1.0")
    assert "tabs (" not in read_state_text(session.pk).yaml
    assert check_state(session.pk) == ""


def test_damaged_checkpoint_is_reported_and_repaired(session: Session) -> None:
    write(session, message("We use tabs"))
    edit_state(session, actor_pk=None, action="pin", item="d1.0")
    StateCheckpoint.objects.filter(session=session).update(state=PREFIX)
    with pytest.raises(Unavailable, match="rebuild_state"):
        rebuild_state_text(session.pk, turn=1, seq=1, rewinds=0)
    rebuild_state(session.pk)
    assert "tabs" in rebuild_state_text(session.pk, turn=1, seq=1, rewinds=0).yaml


def test_events_that_only_look_like_edits_change_nothing(session: Session) -> None:
    write(session, message("We use tabs"))
    notices = [Info(text="state_edit"), Info(text="x", code="state_edit", data={"action": "pin"})]
    for notice in notices:
        append(session.pk, session_uuid=session.uuid, events=[NewEvent(payload=notice)])
    assert check_state(session.pk) == ""
    assert not StateCheckpoint.objects.filter(session=session).exists()


@pytest.mark.django_db(transaction=True)
def test_concurrent_writers_leave_the_state_of_their_turns(session: Session) -> None:
    def work(number: int) -> None:
        try:
            for step in range(8):
                write(session, message(f"We decided to plant row {number}.{step}"), answer())
        finally:
            connections.close_all()

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert get_session(session.uuid).turn_count == 64
    assert check_state(session.pk) == ""


def test_damaged_state_does_not_prevent_reading_or_writing(session: Session) -> None:
    write(session, message("We use tabs"))
    before = read_state_text(session.pk)
    Session.objects.filter(pk=session.pk).update(state='{"v":1,"tokens"')
    assert read_state_text(session.pk) == before
    write(session, message("Water the beans"))
    assert 'current_focus: "Water the beans"' in read_state_text(session.pk).yaml
    rebuild_state(session.pk)
    assert check_state(session.pk) == ""


def run(*arguments: str) -> tuple[int, str]:
    out, code = StringIO(), 0
    try:
        call_command("rebuild_state", *arguments, stdout=out)
    except SystemExit as error:
        code = int(error.code or 0)
    return code, out.getvalue()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda s: s.update(state='{"v":1}'), "the state does not match the turns"),
        (lambda s: s.update(state_turn=7), "the state does not match the turns"),
        (
            lambda s: StateCheckpoint.objects.all().delete(),
            "the checkpoint after turn 2 does not match the turns",
        ),
    ],
)
def test_rebuild_state_command_finds_and_repairs_differences(
    session: Session, damage: Callable[[Any], object], problem: str
) -> None:
    write(session, message("We use tabs"), answer())
    edit_state(session, actor_pk=None, action="pin", item="d1.0")
    assert run("--check") == (0, "1 sessions: 1 correct\n")
    damage(Session.objects.filter(pk=session.pk))
    code, output = run("--check", "--session", str(session.uuid))
    assert code == 1
    assert output.splitlines()[0] == f"{session.uuid}: {problem}"
    assert run() == (0, f"{session.uuid}: rebuilt\n1 sessions: 0 correct\n")
    assert run("--check")[0] == 0
