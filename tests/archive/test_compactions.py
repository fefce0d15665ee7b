"""Loaded skills and summaries: storing, applying, undoing and verifying."""

from uuid import uuid4

import pytest
from django.contrib.auth.models import User

from conversations.archive.append import NewEvent, append, prepare_event
from conversations.archive.context import (
    CompactionRequest,
    append_compaction,
    append_loaded_skill,
    read_active_compaction,
    read_compaction,
    read_useless_attempt,
    request_compaction,
    undo_compaction,
)
from conversations.archive.model_calls import append_call
from conversations.archive.rewinds import append_rewind
from conversations.archive.runs import claim_next_run, finish_run
from conversations.archive.sessions import archive_session, get_session, save_floor
from conversations.archive.verify import verify_session
from conversations.domain.errors import Conflict, NotFound, Rejected
from conversations.domain.events import Info, UserMessage
from conversations.domain.turns import NewTurn
from conversations.models import Compaction, ModelCall, Run, Session
from conversations.rendering.messages import fill_marks
from tests.archive.test_verify import tamper

pytestmark = pytest.mark.django_db


@pytest.fixture
def talked(session: Session) -> Session:
    """A session of ten turns."""
    for number in range(5):
        append(
            session.pk,
            session_uuid=session.uuid,
            turns=[NewTurn(role="user", content=f"q{number}")],
            events=[NewEvent(payload=UserMessage(text=f"q{number}"), new=0)],
        )
        append(
            session.pk,
            session_uuid=session.uuid,
            turns=[NewTurn(role="assistant", content=f"a{number}")],
        )
    return get_session(session.uuid)


def compact(session: Session, *, to_turn: int, floor: int = 1, tokens: int = 0) -> Compaction:
    """Let a run write a summary."""
    request_compaction(
        session,
        client_id=f"client-{uuid4().hex[:20]}",
        request=CompactionRequest(reason="manual", tokens=tokens),
        user_pk=session.owner_id,
    )
    claimed = claim_next_run(session.pk, owner="test")
    assert claimed is not None
    new = Compaction(
        uuid=uuid4(),
        from_turn=1,
        to_turn=to_turn,
        floor_before=floor,
        summary=f"summary to {to_turn}",
        model="m",
        reason="manual",
        before_turns=10,
        after_turns=5,
        before_tokens=1000,
        after_tokens=100,
    )
    row = prepare_event(
        NewEvent(payload=Info(text="Summarised.", code="compacted")), session_uuid=session.uuid
    )
    call = ModelCall(
        ordinal=0, model="m", manifest="{}", request_digest="", input_tokens=70, output_tokens=7
    )
    append_call(claimed, call=call)
    append_compaction(claimed, new=new, event=row)
    return Compaction.objects.get(uuid=new.uuid)


def in_force(session: Session) -> int | None:
    found = read_active_compaction(session.pk)
    return found.to_turn if found else None


def floor(session: Session) -> int:
    return get_session(session.uuid).floor_turn


def test_storing_a_summary_completes_its_run_and_counts_tokens(talked: Session) -> None:
    compact(talked, to_turn=4)
    run = Run.objects.get(session=talked)
    assert (run.kind, run.state, run.model_calls.count()) == ("compact", "completed", 1)
    counted = get_session(talked.uuid)
    assert (counted.input_tokens, counted.output_tokens, counted.turn_count) == (70, 7, 10)
    assert verify_session(counted).problem == ""


def test_newest_summary_is_in_force(talked: Session) -> None:
    assert in_force(talked) is None
    first = compact(talked, to_turn=4)
    compact(talked, to_turn=8)
    assert in_force(talked) == 8
    assert read_compaction(first.pk).summary == "summary to 4"
    with pytest.raises(NotFound):
        read_compaction(first.pk + 100)


def test_undoing_a_summary_restores_the_previous_one_and_the_floor(
    talked: Session, user: User
) -> None:
    first = compact(talked, to_turn=4, floor=3)
    second = compact(talked, to_turn=8, floor=5)
    rows = undo_compaction(talked, uuid=second.uuid, user_pk=user.pk).rows
    assert "The summary of turns 1–8 is undone." in fill_marks(rows[0].html)
    assert (in_force(talked), floor(talked)) == (4, 5)
    undo_compaction(talked, uuid=first.uuid, user_pk=user.pk)
    assert (in_force(talked), floor(talked)) == (None, 3)
    second.refresh_from_db()
    assert second.undone_by == user
    with pytest.raises(Conflict):
        undo_compaction(talked, uuid=first.uuid, user_pk=user.pk)
    with pytest.raises(NotFound):
        undo_compaction(talked, uuid=uuid4(), user_pk=user.pk)


def test_summary_cannot_be_undone_before_a_later_one_made_from_it(
    talked: Session, user: User
) -> None:
    first = compact(talked, to_turn=4)
    second = compact(talked, to_turn=8, floor=5)
    with pytest.raises(Conflict, match=r"^A later summary was made from this one"):
        undo_compaction(talked, uuid=first.uuid, user_pk=user.pk)
    assert (in_force(talked), floor(talked)) == (8, 9)
    append_rewind(talked, from_turn=7, from_seq=None, reason="edit", actor_pk=None)
    assert in_force(talked) == 4  # the rewind put the later summary out of force
    undo_compaction(talked, uuid=first.uuid, user_pk=user.pk)
    assert in_force(talked) is None
    assert Compaction.objects.get(pk=second.pk).undone_at is None


def test_undoing_a_summary_keeps_a_floor_that_has_moved(talked: Session, user: User) -> None:
    only = compact(talked, to_turn=4)
    save_floor(talked.pk, floor=7)
    undo_compaction(talked, uuid=only.uuid, user_pk=user.pk)
    assert floor(talked) == 7


def test_summary_of_rewound_turns_is_not_in_force(talked: Session) -> None:
    append_rewind(talked, from_turn=3, from_seq=None, reason="edit", actor_pk=None)
    append(talked.pk, session_uuid=talked.uuid, turns=[NewTurn(role="user", content="anew")])
    compact(talked, to_turn=2)
    compact(talked, to_turn=11)
    assert in_force(talked) == 11
    append_rewind(talked, from_turn=11, from_seq=None, reason="edit", actor_pk=None)
    assert in_force(talked) == 2


def test_repeated_request_starts_one_run_and_a_second_conflicts(
    session: Session, talked: Session
) -> None:
    def ask(session: Session, reason: str = "manual") -> None:
        request_compaction(
            session,
            client_id="client-id",
            request=CompactionRequest(reason=reason),
            user_pk=None,
        )

    ask(talked)
    ask(talked)
    assert Run.objects.count() == 1
    claimed = claim_next_run(talked.pk, owner="x")
    assert claimed is not None
    with pytest.raises(Conflict):
        request_compaction(
            talked,
            client_id="client-other",
            request=CompactionRequest(reason="manual"),
            user_pk=None,
        )
    finish_run(claimed, state="stopped", payloads=[])


def test_archived_session_accepts_only_the_compaction_at_its_end(talked: Session) -> None:
    archive_session(talked, archived=True)
    for reason in ("manual", "threshold"):
        with pytest.raises(Conflict):
            request_compaction(
                talked,
                client_id="client-a",
                request=CompactionRequest(reason=reason),
                user_pk=None,
            )
    request_compaction(
        talked, client_id="client-b", request=CompactionRequest(reason="end"), user_pk=None
    )
    assert Run.objects.get().kind == "compact"


def test_empty_session_cannot_be_summarised(session: Session) -> None:
    with pytest.raises(Rejected):
        request_compaction(
            session,
            client_id="client-a",
            request=CompactionRequest(reason="manual"),
            user_pk=None,
        )


def test_undone_compaction_counts_as_a_useless_attempt(talked: Session, user: User) -> None:
    assert read_useless_attempt(talked.pk) is None
    done = compact(talked, to_turn=4, tokens=5000)
    assert read_useless_attempt(talked.pk) is None
    undo_compaction(talked, uuid=done.uuid, user_pk=user.pk)
    assert read_useless_attempt(talked.pk) == CompactionRequest(reason="manual", tokens=5000)


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("UPDATE conversations_sessionskill SET content = 'x'", "does not match its digest"),
        ("UPDATE conversations_sessionskill SET turn_number = 99", "at a missing turn"),
        ("UPDATE conversations_compaction SET to_turn = 99", "turn 99, which is missing"),
    ],
)
def test_verification_finds_changed_skills_and_summaries(
    talked: Session, sql: str, found: str
) -> None:
    append_loaded_skill(talked.pk, name="a", path="p", content="c", turn=2)
    compact(talked, to_turn=4)
    assert verify_session(get_session(talked.uuid)).problem == ""
    tamper(sql)
    assert found in verify_session(get_session(talked.uuid)).problem
