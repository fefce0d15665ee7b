"""Appending to the archive: one transaction, gapless numbers, no changes to stored rows."""

import threading
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction

from conversations.archive.append import NewEvent, append
from conversations.archive.journal import walk_events
from conversations.archive.rewinds import append_rewind
from conversations.archive.turns import walk_active_turns_back, walk_turns
from conversations.archive.verify import verify_session
from conversations.domain.events import AssistantText, Info, UserMessage
from conversations.domain.turns import NewTurn
from conversations.models import ChatEvent, JournalGap, PurgePermit, Session, Turn
from tests.archive.turns import append_turn, read_turns

pytestmark = pytest.mark.django_db


def say(session: Session, text: str, *, role: str = "user") -> int:
    payload = UserMessage(text=text) if role == "user" else AssistantText(text=text)
    return append(
        session.pk,
        session_uuid=session.uuid,
        turns=[NewTurn(role=role, content=text)],
        events=[NewEvent(payload=payload, new=0)],
    ).turns[0]


def test_turns_and_events_are_numbered_from_one(session: Session) -> None:
    assert [say(session, "a"), say(session, "b", role="assistant")] == [1, 2]
    assert [event.seq for event in walk_events(session.pk, start=None, limit=9)] == [1, 2]


def test_text_is_stored_verbatim(session: Session) -> None:
    text = "  tabs\tand\r\nlines \u2028 emoji 👩‍🚀 and an astral 𝒳  "
    say(session, text)
    assert read_turns(session.pk)[0].content == text


@pytest.mark.parametrize("page", [2, 100])
def test_walking_back_skips_rewound_turns(session: Session, page: int) -> None:
    say(session, "a")
    for turns, gone in ((5, 3), (4, 6)):  # rewinds turns 3 to 6, then 6 to 10
        append(
            session.pk,
            session_uuid=session.uuid,
            turns=[NewTurn(role="user", content=f"{n}", complete=n != 1) for n in range(turns)],
        )
        append_rewind(session, from_turn=gone, from_seq=None, reason="edit", actor_pk=None)
    say(session, "z")
    stored = {turn.number: turn for turn in read_turns(session.pk)}
    walked = list(walk_active_turns_back(session.pk, page=page))
    assert walked == [stored[number] for number in (11, 2, 1)]
    assert list(walk_active_turns_back(session.pk, page=page, down_to=2)) == walked[:2]


def test_failed_append_stores_nothing_and_uses_no_number(session: Session) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        append(
            session.pk,
            session_uuid=session.uuid,
            turns=[NewTurn(role="user", content="x"), NewTurn(role="nobody", content="y")],
        )
    session.refresh_from_db()
    assert (session.next_turn, session.next_seq) == (1, 1)


def test_failed_event_write_does_not_lose_the_turn(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE conversations_chatevent RENAME TO elsewhere")
    with caplog.at_level("ERROR"):
        say(session, "kept")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE elsewhere RENAME TO conversations_chatevent")
    assert [turn.content for turn in read_turns(session.pk)] == ["kept"]
    assert "chat_event_append_failed" in caplog.text
    say(session, "next")
    session.refresh_from_db()
    gap = JournalGap.objects.get(session=session)
    assert (gap.from_turn, gap.to_turn, gap.after_seq) == (1, 1, 0)
    assert verify_session(session).problem == ""


def test_first_message_becomes_the_title_at_once(session: Session) -> None:
    say(session, "Plant **the** beans\n```sh\nbefore May\n```")
    say(session, "and the peas")
    session.refresh_from_db()
    assert session.title == "Plant the beans before May"
    assert session.preview == "and the peas"


def test_event_without_a_turn_belongs_to_the_last_turn(session: Session) -> None:
    say(session, "hello")
    notice = NewEvent(payload=Info(text="a notice"))
    [row] = append(session.pk, session_uuid=session.uuid, events=[notice]).rows
    assert row.turn == 1
    assert 'data-turn="1"' in row.html


def test_database_refuses_insert_or_replace(session: Session) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("a statement of SQLite's")
    say(session, "hello")
    with pytest.raises(DatabaseError, match="append-only"), connection.cursor() as cursor:
        cursor.execute(
            "INSERT OR REPLACE INTO conversations_turn"
            " (session_id, number, role, content, token_count, stop_reason, complete, metadata,"
            " created_at, digest, html, render_version)"
            " SELECT session_id, number, role, 'other', 0, '', 1, '{}', created_at, digest, '', 0"
            " FROM conversations_turn"
        )


def test_cached_rendering_can_be_updated(session: Session) -> None:
    say(session, "hello")
    assert ChatEvent.objects.update(html="", render_version=0) == 1
    assert Turn.objects.update(html="", render_version=0) == 1


def test_events_can_be_deleted_under_a_purge_permit(session: Session) -> None:
    say(session, "hello")
    PurgePermit.objects.create(session_pk=session.pk, reason="r", created_at=session.created_at)
    ChatEvent.objects.filter(session=session)._raw_delete("default")
    assert not ChatEvent.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_numbers_are_gapless_under_eight_writers(session: Session) -> None:
    errors: list[Any] = []

    def write(name: int) -> None:
        try:
            for number in range(25):
                say(session, f"{name}-{number}")
        except Exception as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(Turn.objects.values_list("number", flat=True)) == list(range(1, 201))
    assert sorted(ChatEvent.objects.values_list("seq", flat=True)) == list(range(1, 201))
    assert verify_session(Session.objects.get(pk=session.pk)).problem == ""


def test_walk_turns_returns_turns_in_order_from_a_start(session: Session) -> None:
    for number in range(4):
        append_turn(session, NewTurn(role="user", content=str(number)))
    later = walk_turns(session.pk, start=2, is_back=False, limit=9)
    assert [turn.content for turn in later] == ["2", "3"]


def test_append_needs_the_same_number_of_queries_at_any_length(
    session: Session, django_assert_num_queries: Any
) -> None:
    say(session, "first")
    queries = 6
    with django_assert_num_queries(queries):
        say(session, "x")
    for number in range(30):
        say(session, str(number))
    with django_assert_num_queries(queries):
        say(session, "y")
