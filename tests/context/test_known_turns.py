"""A window reads only the turns that the window before it did not have."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from conversations.agent.window.messages import MessageCaps, WindowPiece
from conversations.agent.window.window import NEW_PAGE_TURNS, TurnCache, TurnSelection
from conversations.archive.append import append
from conversations.archive.rewinds import append_rewind
from conversations.archive.turns import walk_active_turns_back
from conversations.domain.turns import NewTurn
from conversations.models import Session

pytestmark = pytest.mark.django_db


CAPS = MessageCaps(message=100, result=100)


def known_turns(session: Session, *, floor: int = 1, model: str = "m") -> TurnCache:
    place = TurnSelection(session_pk=session.pk, rewinds=session.rewind_count, floor=floor)
    return TurnCache(place, model=model, caps=CAPS)


def say(session: Session, *texts: str) -> None:
    turns = [NewTurn(role="user", content=text) for text in texts]
    append(session.pk, session_uuid=session.uuid, turns=turns)


def walk(session: Session, *, floor: int = 1) -> tuple[list[str], int]:
    """Return the texts of a window's turns and the number of queries that reading them took.

    Check that the turns are the same as in the archive.
    """
    session.refresh_from_db()
    with CaptureQueriesContext(connection) as queries:
        found = list(known_turns(session, floor=floor).walk_back())
    assert found == list(walk_active_turns_back(session.pk, down_to=floor))
    return [turn.content for turn in found], len(queries)


def test_known_turns_are_not_read_again(session: Session) -> None:
    say(session, *(f"turn {number}" for number in range(1, 251)))
    assert walk(session)[1] == 3
    say(session, "one more", "and one")
    texts, statements = walk(session)
    assert (len(texts), texts[0], statements) == (252, "and one", 1)
    say(session, *(f"more {number}" for number in range(NEW_PAGE_TURNS + 3)))
    assert walk(session)[1] == 2


def test_turns_are_read_again_after_a_rewind_or_for_another_floor(session: Session) -> None:
    say(session, *(f"turn {number}" for number in range(1, 31)))
    walk(session)
    assert walk(session, floor=11)[0][-1] == "turn 11"
    append_rewind(session, from_turn=21, from_seq=None, reason="edit", actor_pk=None)
    assert walk(session)[0][0] == "turn 20"
    say(session, "instead")
    assert walk(session)[0][:2] == ["instead", "turn 20"]


def test_walk_that_stops_early_does_not_leave_a_partial_cache(session: Session) -> None:
    say(session, *(f"turn {number}" for number in range(1, 31)))
    session.refresh_from_db()
    walked = known_turns(session).walk_back()
    next(walked)
    walked.close()
    assert len(walk(session)[0]) == 30


def test_piece_is_made_once_for_a_model(session: Session) -> None:
    say(session, "hello")

    def make(model: str) -> WindowPiece:
        known = known_turns(session, model=model)
        [turn] = known.walk_back()
        return known.make_piece(turn, CAPS)

    first = make("m")
    assert make("m") is first
    assert make("another") is not first
    assert make("another") == first == make("m")
