"""Taking turns off the active path: from a message on, or from the start."""

import pytest
from django.contrib.auth.models import User

from conversations.archive.append import append
from conversations.archive.forking import fork_session
from conversations.archive.message_formats import read_messages
from conversations.archive.messages import reset_session, rewind_session
from conversations.archive.outline import read_outline
from conversations.archive.sessions import create_session, get_session
from conversations.archive.turns import (
    read_rewound,
    walk_active_turns,
    walk_active_turns_back,
    walk_turns,
)
from conversations.archive.verify import verify_session
from conversations.domain.errors import Conflict, Rejected
from conversations.domain.turns import NewTurn
from conversations.models import Rewind, Run, Session, Workspace
from tests.archive.turns import append_turn, read_turns
from tests.web.conftest import say

pytestmark = pytest.mark.django_db


def active(session: Session) -> list[int]:
    return sorted(turn.number for turn in walk_active_turns_back(session.pk))


def test_rewind_takes_a_message_and_later_turns_off_the_path(session: Session, user: User) -> None:
    say(session, "One", "First", "Two", "Second")
    rewound = rewind_session(session, from_turn=3, actor_pk=user.pk)
    assert (rewound.from_seq, rewound.to_seq, rewound.count) == (3, 4, 1)
    assert active(session) == [1, 2]
    assert len(read_turns(session.pk)) == 4
    say(session, "Other")
    assert active(session) == [1, 2, 5]
    with pytest.raises(Rejected):
        rewind_session(session, from_turn=3, actor_pk=user.pk)  # already off the active path
    rewind_session(session, from_turn=1, actor_pk=user.pk)
    assert active(session) == []


@pytest.mark.parametrize("turn", [2, 99, 0, -1])
def test_only_a_message_of_a_person_can_be_rewound_to(session: Session, turn: int) -> None:
    say(session, "One", "First")
    with pytest.raises(Rejected):
        rewind_session(session, from_turn=turn, actor_pk=None)


def test_rewind_and_reset_are_refused_while_a_run_is_queued(session: Session) -> None:
    say(session, "One")
    run = Run(session=session, client_id="client-1", kind="message", state="queued")
    run.created_at = session.created_at
    run.save()
    with pytest.raises(Conflict):
        rewind_session(session, from_turn=1, actor_pk=None)
    with pytest.raises(Conflict):
        reset_session(session, keeps_instructions=True, actor_pk=None)


@pytest.mark.parametrize(("keeps", "left"), [(True, [1]), (False, [])])
def test_reset_keeps_or_removes_the_system_message(
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


def test_reset_of_an_empty_session_changes_nothing(session: Session) -> None:
    assert reset_session(session, keeps_instructions=True, actor_pk=None).count == 0


@pytest.mark.parametrize("keeps", [True, False])
def test_second_reset_rewinds_nothing(session: Session, user: User, keeps: bool) -> None:
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


def test_reset_keeps_a_system_message_without_later_turns(session: Session) -> None:
    append_turn(session, NewTurn(role="system", content="You are a gardener."))
    reset_session(session, keeps_instructions=True, actor_pk=None)
    assert active(session) == [1]
    assert not Rewind.objects.exists()


MANY = 1_100  # SQLite accepts a thousand terms in one condition.


def rewind_often(session: Session) -> Session:
    """Append messages and rewind every second one."""
    turns = [NewTurn(role="user", content=f"Row {number}") for number in range(1, 2 * MANY + 1)]
    append(session.pk, session_uuid=session.uuid, turns=turns)
    Rewind.objects.bulk_create(
        Rewind(
            session=session,
            from_turn=number,
            to_turn=number,
            from_seq=1,
            to_seq=0,
            reason="undo",
            created_at=session.created_at,
        )
        for number in range(2, 2 * MANY + 1, 2)
    )
    Session.objects.filter(pk=session.pk).update(rewind_count=MANY)
    return get_session(session.uuid)


def test_session_may_have_any_number_of_rewinds(session: Session, user: User) -> None:
    full = rewind_often(session)
    left = list(range(1, 2 * MANY + 1, 2))
    rewound = read_rewound(full.pk, "turn")
    assert len(rewound) == MANY
    assert active(full) == [turn.number for turn in walk_active_turns(full.pk)] == left
    for is_active, first in ((True, 1), (False, 2)):
        page = walk_turns(
            full.pk, start=None, is_back=False, limit=3, rewound=rewound, active=is_active
        )
        assert [turn.number for turn in page] == [first, first + 2, first + 4]
    messages = read_messages(full, format="openai", limit=3).messages
    assert [message["content"] for message in messages] == ["Row 1", "Row 3", "Row 5"]
    outline = read_outline(full, before=None, limit=3)
    assert [entry.turn for entry in outline] == left[-3:]
    made = fork_session(full, turn=201, owner=user)
    assert (made.turn_count, read_turns(made.pk)[1].content) == (101, "Row 3")
