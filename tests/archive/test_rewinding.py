"""Taking turns off the active path: from a message on, or from the start."""

import pytest
from django.contrib.auth.models import User

from conversations.archive.messages import reset_session, rewind_session
from conversations.archive.sessions import create_session
from conversations.archive.turns import append_turn, read_turns, walk_active_turns_back
from conversations.archive.verify import verify_session
from conversations.domain.errors import Conflict, Rejected
from conversations.domain.turns import NewTurn
from conversations.models import Rewind, Run, Session, Workspace
from tests.web.conftest import say

pytestmark = pytest.mark.django_db


def active(session: Session) -> list[int]:
    return sorted(turn.number for turn in walk_active_turns_back(session.pk))


def test_what_follows_a_message_leaves_the_active_path(session: Session, user: User) -> None:
    say(session, "One", "First", "Two", "Second")
    rewound = rewind_session(session, from_turn=3, actor_pk=user.pk)
    assert (rewound.from_seq, rewound.to_seq, rewound.count) == (3, 4, 1)
    assert active(session) == [1, 2]
    assert len(read_turns(session.pk)) == 4
    say(session, "Other")
    assert active(session) == [1, 2, 5]
    with pytest.raises(Rejected):
        rewind_session(session, from_turn=3, actor_pk=user.pk)  # left already
    rewind_session(session, from_turn=1, actor_pk=user.pk)
    assert active(session) == []


@pytest.mark.parametrize("turn", [2, 99, 0, -1])
def test_only_a_message_of_the_person_can_be_gone_back_to(session: Session, turn: int) -> None:
    say(session, "One", "First")
    with pytest.raises(Rejected):
        rewind_session(session, from_turn=turn, actor_pk=None)


def test_nothing_is_rewound_while_an_answer_is_written(session: Session) -> None:
    say(session, "One")
    run = Run(session=session, client_id="client-1", kind="message", state="queued")
    run.created_at = session.created_at
    run.save()
    with pytest.raises(Conflict):
        rewind_session(session, from_turn=1, actor_pk=None)
    with pytest.raises(Conflict):
        reset_session(session, keeps_instructions=True, actor_pk=None)


@pytest.mark.parametrize(("keeps", "left"), [(True, [1]), (False, [])])
def test_a_reset_keeps_the_system_message_or_not(
    workspace: Workspace, user: User, keeps: bool, left: list[int]
) -> None:
    session = create_session(workspace, owner=user, instructions="Be brief.")
    append_turn(session, NewTurn(role="system", content="You are a gardener."))
    say(session, "One", "First")
    reset_session(session, keeps_instructions=keeps, actor_pk=user.pk)
    assert active(session) == left
    session.refresh_from_db()
    assert session.instructions == ("Be brief." if keeps else "")
    assert len(read_turns(session.pk)) == 3
    assert not verify_session(session).problem


def test_a_reset_of_nothing_changes_nothing(session: Session) -> None:
    assert reset_session(session, keeps_instructions=True, actor_pk=None).count == 0


@pytest.mark.parametrize("keeps", [True, False])
def test_a_second_reset_finds_nothing_to_reset(session: Session, user: User, keeps: bool) -> None:
    append_turn(session, NewTurn(role="system", content="You are a gardener."))
    say(session, "One", "First")
    rewind_session(session, from_turn=2, actor_pk=user.pk)
    say(session, "Two", "Second")
    first = reset_session(session, keeps_instructions=keeps, actor_pk=user.pk)
    assert first.count == 2
    again = reset_session(session, keeps_instructions=keeps, actor_pk=user.pk)
    assert (again.count, again.from_seq > again.to_seq) == (0, True)
    assert Rewind.objects.count() == 2
    say(session, "Three")
    assert reset_session(session, keeps_instructions=keeps, actor_pk=user.pk).count == 3
    assert active(session) == ([1] if keeps else [])


def test_a_reset_keeps_a_system_message_that_nothing_follows(session: Session) -> None:
    append_turn(session, NewTurn(role="system", content="You are a gardener."))
    reset_session(session, keeps_instructions=True, actor_pk=None)
    assert active(session) == [1]
    assert not Rewind.objects.exists()
