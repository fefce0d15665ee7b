"""Notices and their messages: recipients, delays, retries, and messages that are dropped."""

from datetime import UTC, datetime, time, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from conversations.archive.audit import AuditOrigin
from conversations.archive.messages import accept_message
from conversations.archive.purge import PurgeRequest, purge
from conversations.archive.runs import finish_run, interrupt_run
from conversations.archive.tool_calls import decide_call
from conversations.archive.workspaces import add_member, remove_member
from conversations.domain import runs
from conversations.domain.tool_calls import WAITING
from conversations.feature import features
from conversations.features.notices import deliveries, service
from conversations.features.notices.deliveries import claim_due, complete_message, has_due
from conversations.features.notices.models import (
    ASKS,
    BROKEN,
    DROPPED,
    FAILED,
    FINISHED,
    PENDING,
    SENT,
    Notice,
    NoticeChoice,
    NoticeMessage,
    PushSubscription,
)
from conversations.models import Session, ToolCall
from conversations.runtime.outbox import DeliveryAttempt
from loomweb.env import SMTP_SECONDS
from tests.waiting_calls import leave_question
from tests.web.conftest import browser_of

from .making import subscribe_browser
from .push_service import PushService

pytestmark = pytest.mark.django_db


def end_run(session: Session, state: str) -> None:
    accepted = accept_message(
        session,
        client_id=f"client-{timezone.now().timestamp()}".replace(".", "-"),
        text="Hello",
        user_pk=session.owner_id,
        max_queued=9,
        owner="me",
    )
    assert accepted.claimed is not None
    if state == runs.INTERRUPTED:
        interrupt_run(accepted.run_pk, owner="me")
    else:
        finish_run(accepted.claimed, state=state, payloads=[])


def claim(now: datetime | None = None) -> list[NoticeMessage]:
    return claim_due(now or timezone.now(), busy={}, most=9, most_of_one=9)


def states() -> list[str]:
    return list(NoticeMessage.objects.order_by("pk").values_list("state", flat=True))


@pytest.mark.parametrize(
    ("state", "events"),
    [
        (runs.COMPLETED, [FINISHED]),
        (runs.FAILED, [BROKEN]),
        (runs.INTERRUPTED, [BROKEN]),
        (runs.STOPPED, []),
    ],
)
def test_the_notice_says_how_a_run_ended(
    state: str, events: list[str], session: Session, subscription: PushSubscription
) -> None:
    end_run(session, state)
    assert list(Notice.objects.values_list("event", flat=True)) == events
    assert [message.subscription for message in claim()] == [subscription] * len(events)


def test_a_question_that_is_recorded_twice_is_sent_once(
    session: Session, subscription: PushSubscription
) -> None:
    call = leave_question(session)
    for feature in features():
        feature.on_approval_asked(session.pk, [call.pk])
    notice = Notice.objects.get()
    assert (notice.event, notice.subject) == (ASKS, call.uuid)
    assert len(claim()) == 1
    assert claim() == []


def test_without_chosen_notices_the_end_of_a_run_takes_one_query(session: Session) -> None:
    call = leave_question(session)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        deliveries.enqueue_run_ended(call.run_id)
    assert len(queries) == 1
    assert not Notice.objects.exists()


def test_an_idle_worker_polls_with_one_indexed_query_per_check() -> None:
    """Every process polls for as long as it runs."""
    with CaptureQueriesContext(connection) as queries:
        assert not has_due(timezone.now())
        assert not service.list_ended()
    assert len(queries) == 2
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {queries[0]['sql']}")
            assert "INDEX notice_message_due" in cursor.fetchall()[0][3]


def test_only_chosen_events_make_a_notice(session: Session, subscription: PushSubscription) -> None:
    NoticeChoice.objects.update(finished=False)
    end_run(session, runs.COMPLETED)
    assert not Notice.objects.exists()
    end_run(session, runs.FAILED)
    assert Notice.objects.get().event == BROKEN


def test_only_the_owner_and_the_sender_get_a_notice(
    session: Session, subscription: PushSubscription, push_service: PushService
) -> None:
    people = [User.objects.create_user(name) for name in ("ben", "cat")]
    for person in people:
        add_member(session.workspace, user_pk=person.pk, role="member")
        subscribe_browser(browser_of(person), person, push_service.make_browser())
    accepted = accept_message(
        session, client_id="x" * 9, text="Hi", user_pk=people[0].pk, max_queued=9, owner="me"
    )
    assert accepted.claimed is not None
    finish_run(accepted.claimed, state=runs.COMPLETED, payloads=[])
    assert set(Notice.objects.values_list("user", flat=True)) == {session.owner_id, people[0].pk}


def test_messages_of_a_muted_session_are_dropped(
    session: Session, user: User, subscription: PushSubscription
) -> None:
    leave_question(session)
    service.mute(user.pk, session)
    assert claim() == []
    assert states() == [DROPPED]
    assert Notice.objects.count() == 1


@pytest.mark.parametrize(
    ("turned_off", "left"),
    [("asks", []), ("by_email", ["push"]), ("finished", ["push", "e-mail"])],
)
def test_what_was_turned_off_meanwhile_is_not_sent_or_shown(
    turned_off: str,
    left: list[str],
    session: Session,
    user: User,
    subscription: PushSubscription,
) -> None:
    user.email = "ann@example.org"
    user.save()
    NoticeChoice.objects.update(by_email=True)
    leave_question(session)
    NoticeChoice.objects.update(**{turned_off: False})
    waiting = deliveries.read_waiting(user.pk, subscription_pk=subscription.pk)
    assert [len(waiting.new), len(waiting.still)] == [int("push" in left)] * 2
    claimed = claim(timezone.now() + deliveries.EMAIL_DELAY)
    assert {"push" if one.subscription else "e-mail" for one in claimed} == set(left)
    assert states().count(DROPPED) == 2 - len(left)


def test_the_message_about_a_decided_question_is_dropped(
    session: Session, user: User, subscription: PushSubscription
) -> None:
    call = leave_question(session)
    decide_call(session, call=call.uuid, decision="deny", user_pk=user.pk)
    assert claim() == []
    assert states() == [DROPPED]


def test_a_message_is_dropped_if_the_person_lost_access_to_the_session(
    session: Session, subscription: PushSubscription
) -> None:
    """This includes superusers, because their reading would be entered in the audit log."""
    leave_question(session)
    admin = User.objects.create_user("root")
    add_member(session.workspace, user_pk=admin.pk, role="owner")
    remove_member(session.workspace, user_pk=session.owner_id)
    User.objects.filter(pk=session.owner_id).update(is_superuser=True)
    assert claim() == []
    assert states() == [DROPPED]


def test_a_password_change_ends_messages_to_earlier_sign_ins(
    session: Session, user: User, subscription: PushSubscription
) -> None:
    leave_question(session)
    user.set_password("another one")
    user.save()
    assert claim() == []


def test_messages_wait_while_the_page_is_open_and_drop_when_seen(
    session: Session, user: User, subscription: PushSubscription
) -> None:
    service.record_view(user.pk, session, is_open=True)
    leave_question(session)
    assert claim() == []
    assert states() == [PENDING]
    later = timezone.now() + service.VIEW_LIFETIME
    assert len(claim(later)) == 1, "the page has said nothing more"
    NoticeMessage.objects.update(next_at=later)
    service.record_view(user.pk, session, is_open=True)
    assert claim(later) == []
    assert states() == [DROPPED]


def test_a_page_that_was_left_does_not_delay_messages(
    session: Session, user: User, subscription: PushSubscription
) -> None:
    service.record_view(user.pk, session, is_open=True)
    service.record_view(user.pk, session, is_open=False)
    leave_question(session)
    assert len(claim()) == 1


QUIET = NoticeChoice(quiet_from=time(22), quiet_until=time(7), zone="Europe/Berlin")


@pytest.mark.parametrize(
    ("now", "until"),
    [
        ((1, 20, 59), None),
        ((1, 21, 0), (2, 6, 0)),  # 22:00 in Berlin
        ((2, 2, 0), (2, 6, 0)),
        ((2, 5, 59), (2, 6, 0)),
        ((2, 6, 0), None),
    ],
)
def test_quiet_hours_use_the_time_zone_of_the_person(
    now: tuple[int, int, int], until: tuple[int, int, int] | None
) -> None:
    moment = datetime(2026, 1, *now, tzinfo=UTC)
    assert service.quiet_until(QUIET, moment) == (until and datetime(2026, 1, *until, tzinfo=UTC))


def test_quiet_hours_may_end_in_the_repeated_hour_of_a_clock_change() -> None:
    choice = NoticeChoice(quiet_from=time(22), quiet_until=time(2, 30), zone="Europe/Berlin")
    for now, until in (((0, 10), (0, 30)), ((0, 40), None), ((1, 10), (1, 30)), ((1, 30), None)):
        moment = datetime(2026, 10, 25, *now, tzinfo=UTC)
        expected = until and datetime(2026, 10, 25, *until, tzinfo=UTC)
        assert service.quiet_until(choice, moment) == expected


def test_quiet_hours_may_lie_within_one_day_or_be_unset() -> None:
    noon = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
    at_noon = NoticeChoice(quiet_from=time(12), quiet_until=time(13))
    assert service.quiet_until(at_noon, noon) == noon + timedelta(minutes=30)
    assert service.quiet_until(at_noon, noon + timedelta(hours=1)) is None
    assert service.quiet_until(NoticeChoice(), noon) is None


def test_messages_wait_until_quiet_hours_end(
    session: Session, subscription: PushSubscription
) -> None:
    now = timezone.now()
    begin, end = (now - timedelta(hours=1)).time(), (now + timedelta(hours=1)).time()
    NoticeChoice.objects.update(quiet_from=begin, quiet_until=end)
    leave_question(session)
    assert claim() == []
    assert len(claim(now + timedelta(hours=1, seconds=1))) == 1


def test_changed_quiet_hours_apply_to_messages_that_wait(
    session: Session, user: User, subscription: PushSubscription
) -> None:
    now = timezone.now()

    def save(quiet_hours: int) -> None:
        ends = [(now + timedelta(hours=hours)).time() for hours in (-1, quiet_hours)]
        chosen = ends if quiet_hours else [None, None]
        service.save_choice(user.pk, site="", quiet_from=chosen[0], quiet_until=chosen[1])

    save(1)
    leave_question(session)
    assert claim() == []
    save(2)
    assert claim() == []
    assert claim(now + timedelta(hours=1, seconds=1)) == []
    save(0)
    assert len(claim()) == 1
    save(1)
    save(0)
    assert claim() == [], "it is being sent"


def test_a_failing_message_is_retried_and_finally_given_up(
    session: Session, subscription: PushSubscription
) -> None:
    leave_question(session)
    now = timezone.now()
    for _ in range(len(deliveries.RETRY_SECONDS) + 1):
        assert states() == [PENDING]
        [message] = claim(now)
        complete_message(message, DeliveryAttempt(arrived=False), now=now)
        now = NoticeMessage.objects.get().next_at
    assert states() == [FAILED]


def test_an_email_is_not_sent_again_during_its_smtp_dialogue(session: Session, user: User) -> None:
    user.email = "ann@example.org"
    user.save()
    NoticeChoice.objects.create(user=user, by_email=True)
    leave_question(session)
    now = NoticeMessage.objects.get().next_at
    assert len(claim(now)) == 1
    # The dialogue: connecting, greetings, encryption, signing in, the mail and the responses.
    assert claim(now + timedelta(seconds=15 * SMTP_SECONDS)) == []
    assert len(claim(now + deliveries.EMAIL_LEASE)) == 1


def test_a_shown_notice_is_not_sent_again(
    session: Session, user: User, subscription: PushSubscription
) -> None:
    """A process has sent a push and ended before it could record that."""
    leave_question(session)
    [message] = claim()
    waiting = deliveries.read_waiting(user.pk, subscription_pk=subscription.pk)
    assert waiting.new == [message.notice]
    deliveries.record_shown(user.pk, subscription_pk=subscription.pk, notices=[message.notice.uuid])
    assert claim(timezone.now() + 2 * deliveries.LEASE) == []
    assert states() == [SENT]
    waiting = deliveries.read_waiting(user.pk, subscription_pk=subscription.pk)
    assert (waiting.new, waiting.still) == ([], [message.notice])
    ToolCall.objects.update(decision="once")
    assert deliveries.read_waiting(user.pk, subscription_pk=subscription.pk).still == []


def test_a_question_replaces_the_previous_one_of_the_same_run(
    session: Session, user: User, subscription: PushSubscription
) -> None:
    first = leave_question(session)
    decide_call(session, call=first.uuid, decision="once", user_pk=user.pk)
    second = ToolCall.objects.create(
        session=session,
        run=first.run,
        call_id="next",
        name="add",
        arguments="{}",
        state=WAITING,
        turn_number=first.turn_number + 2,
        created_at=timezone.now(),
    )
    deliveries.enqueue_question(second.pk)
    waiting = deliveries.read_waiting(user.pk, subscription_pk=subscription.pk)
    assert [notice.subject for notice in waiting.new] == [second.uuid]
    assert waiting.still == waiting.new
    assert [message.notice for message in claim()] == waiting.new
    assert states() == [DROPPED, PENDING]


def test_sent_notices_are_not_shown_once_their_session_is_muted(
    session: Session, user: User, subscription: PushSubscription
) -> None:
    leave_question(session)
    [message] = claim()
    complete_message(message, DeliveryAttempt(arrived=True, status=201), now=timezone.now())
    service.mute(user.pk, session)
    waiting = deliveries.read_waiting(user.pk, subscription_pk=subscription.pk)
    assert (waiting.new, waiting.still) == ([], [])


def test_a_recent_notice_is_kept_until_its_session_is_purged(
    session: Session, user: User, subscription: PushSubscription
) -> None:
    end_run(session, runs.FAILED)
    service.mute(user.pk, session)
    service.record_view(user.pk, session, is_open=True)
    for feature in features():
        feature.forget_old(timezone.now())
    assert Notice.objects.count() == 1
    purge(
        session,
        order=PurgeRequest(reason="Asked", by=user),
        origin=AuditOrigin(user=user),
        now=timezone.now(),
    )
    assert not Notice.objects.exists()
    assert not NoticeMessage.objects.exists()


def test_notices_of_a_week_ago_are_deleted(
    session: Session, subscription: PushSubscription
) -> None:
    end_run(session, runs.FAILED)
    for feature in features():
        feature.forget_old(timezone.now() + timedelta(days=8))
    assert not Notice.objects.exists()
