"""The outbox of notices: enqueueing, sending and recording which ones were shown.

A notice is written once for each person, in the transaction of the event that it reports. It is
checked again before it is sent. It is sent to each of the person's devices at least once: if a
process dies between sending a message and recording that, another process sends it again. The
browser shows each notice once, because it asks for the notices that it has not shown yet and
reports those that it has shown.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from conversations.archive import rights
from conversations.archive.append import has_row, moment_value, remove_in_pieces
from conversations.domain import runs
from conversations.domain.tool_calls import RUNNING, WAITING
from conversations.models import Run, ToolCall
from conversations.runtime.outbox import DeliveryAttempt, allot, next_attempt

from .models import (
    ASKS,
    BROKEN,
    DROPPED,
    FAILED,
    FINISHED,
    PENDING,
    SENT,
    MutedSession,
    Notice,
    NoticeChoice,
    NoticeMessage,
    SessionView,
)
from .service import is_signed_in, list_subscriptions, quiet_until

EVENT_OF_STATE = {
    runs.COMPLETED: FINISHED,
    runs.FAILED: BROKEN,
    runs.INTERRUPTED: BROKEN,
}
"""Final state of a run → event of its notice. A stopped run needs none: a person stopped it."""

RETRY_SECONDS = (5, 30, 120, 600, 1_800, 7_200)

LEASE = timedelta(seconds=15)  # how long a claim holds: longer than an attempt may take

# The lease of an e-mail is longer, because a mail server may take ``SMTP_SECONDS`` for each step
# of the dialogue.
EMAIL_LEASE = timedelta(minutes=10)

EMAIL_DELAY = timedelta(seconds=60)  # no e-mail is sent if the person sees the notice by then

MAX_NOTICE_AGE = timedelta(days=1)  # older notices are not shown any more

MAX_SHOWN_NOTICES = 20  # at once, in one browser

BATCH_ROWS = 500


# Enqueueing.


def enqueue_run_ended(run_pk: int) -> None:
    """Enqueue notices that a run has ended, in the transaction that ends it.

    This costs one statement if nobody wants notices.
    """
    if not (people := _people_of(run_pk)):
        return
    run = Run.objects.select_related("session").get(pk=run_pk)
    event = EVENT_OF_STATE.get(run.state)
    if event and run.kind != runs.COMPACT:
        _enqueue(run, people, event=event, subject=run.uuid)


def enqueue_question(call_pk: int, *, question: UUID | None = None) -> None:
    """Enqueue notices that a tool call waits for a person, in the transaction that asks.

    ``question`` is the question of the call's tool server, or None if the call needs approval.
    """
    call = ToolCall.objects.get(pk=call_pk)
    if people := _people_of(call.run_id):
        run = Run.objects.select_related("session").get(pk=call.run_id)
        _enqueue(run, people, event=ASKS, subject=question or call.uuid)


def _people_of(run_pk: int) -> list[int]:
    # Raw SQL, because this is executed whenever a run ends, and usually finds nobody.
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.user_id FROM conversations_run r"
            " JOIN conversations_session s ON s.id = r.session_id"
            " JOIN conversations_noticechoice c"
            " ON c.user_id = r.requested_by_id OR c.user_id = s.owner_id"
            " WHERE r.id = %s",
            [run_pk],
        )
        return [pk for (pk,) in cursor.fetchall()]


def _enqueue(run: Run, people: Iterable[int], *, event: str, subject: UUID) -> None:
    notified = Notice.objects.filter(subject=subject).values("user")
    choices = _choices_of(event, session_pk=run.session_id).filter(user__in=people)
    now = timezone.now()
    for choice in choices.exclude(user__in=notified):
        notice = Notice.objects.create(
            user=choice.user,
            session=run.session,
            run=run,
            event=event,
            subject=subject,
            created_at=now,
        )
        messages = [
            NoticeMessage(notice=notice, subscription=subscription, next_at=now)
            for subscription in list_subscriptions(choice.user_id)
        ]
        if _wants_email(choice):
            messages.append(NoticeMessage(notice=notice, next_at=now + EMAIL_DELAY))
        NoticeMessage.objects.bulk_create(messages)


def _choices_of(event: str, *, session_pk: int) -> QuerySet[NoticeChoice]:
    """Return the choices of all people who want notices of this event of the session."""
    muted = MutedSession.objects.filter(user=OuterRef("user"), session=session_pk)
    choices = NoticeChoice.objects.filter(**{event: True}).exclude(Exists(muted))
    return choices.select_related("user")


def _wants_email(choice: NoticeChoice) -> bool:
    return choice.by_email and bool(choice.user.email)


# Sending.


def _due(now: datetime) -> QuerySet[NoticeMessage]:
    return NoticeMessage.objects.filter(state=PENDING, next_at__lte=now)


# This query is executed twice a second for as long as the server runs. Without the ORM, it takes
# less than a tenth of the time. The state is a literal so that the partial index applies.
HAS_DUE = (
    "SELECT 1 FROM conversations_noticemessage"  # noqa: S608 (a constant)
    f" WHERE state = '{PENDING}' AND next_at <= %s LIMIT 1"
)


def has_due(now: datetime) -> bool:
    return has_row(HAS_DUE, [moment_value(now)])


def count_pending() -> int:
    return NoticeMessage.objects.filter(state=PENDING).count()


def claim_due(
    now: datetime, *, busy: Mapping[Any, int], most: int, most_of_one: int
) -> list[NoticeMessage]:
    """Claim messages that are due, with all related rows that sending needs.

    Messages that are no longer wanted are dropped, and messages that have to wait are put off.
    """
    due = _due(now).order_by().values_list("subscription", flat=True).distinct()[:BATCH_ROWS]
    free = allot(list(due), busy=busy, most=most, most_of_one=most_of_one)
    claimed: list[NoticeMessage] = []
    for subscription, count in free.items():
        messages = _due(now).filter(subscription=subscription).order_by("next_at", "pk")
        messages = messages.select_related(
            "notice__session__workspace", "notice__run", "notice__user", "subscription__device"
        )
        claimed += [message for message in messages[:count] if _claim(message, now)]
    return claimed


def _claim(message: NoticeMessage, now: datetime) -> bool:
    # Only one of several processes can claim a message, because that changes ``next_at``.
    same = NoticeMessage.objects.filter(pk=message.pk, state=PENDING, next_at=message.next_at)
    if not is_wanted(message.notice, message=message):
        same.update(state=DROPPED, next_at=now)
        return False
    if (later := _wait_until(message.notice, now)) is not None:
        same.update(next_at=later)
        return False
    lease = EMAIL_LEASE if message.subscription_id is None else LEASE
    if not same.update(next_at=now + lease, attempts=F("attempts") + 1):
        return False
    message.attempts += 1
    return True


def is_wanted(notice: Notice, *, message: NoticeMessage) -> bool:
    """Return whether the person may still receive the notice, and it is still news to them."""
    subscription = message.subscription
    return (
        message.shown_at is None
        and notice.created_at > timezone.now() - MAX_NOTICE_AGE
        and notice.user.is_active
        and (subscription is None or is_signed_in(subscription))
        and may_receive(notice, by_email=subscription is None)
        and is_news(notice)
    )


def may_receive(notice: Notice, *, by_email: bool) -> bool:
    """Return whether the person is a member of the workspace and still wants such notices.

    Reviewers get no notices, because the audit log has to record everything that they read, and a
    notice is not recorded.
    """
    if rights.role_of(notice.session.workspace, notice.user_id) is None:
        return False
    choices = _choices_of(notice.event, session_pk=notice.session_id)
    choice = choices.filter(user=notice.user_id).first()
    return choice is not None and (not by_email or _wants_email(choice))


def is_news(notice: Notice) -> bool:
    """Return whether the notice is still news to the person.

    A notice is no longer news after the person has had the session in view. A notice that asks is
    no longer news if no call waits any more.
    """
    views = SessionView.objects.filter(user=notice.user_id, session=notice.session_id)
    if views.filter(seen_at__gt=notice.created_at).exists():
        return False
    if notice.event != ASKS:
        return True
    # The newest of these notices of a run covers all calls that wait in it.
    asked_since = Notice.objects.filter(
        user=notice.user_id, run=notice.run_id, event=ASKS, pk__gt=notice.pk
    )
    return waiting_calls(notice).exists() and not asked_since.exists()


def waiting_calls(notice: Notice) -> QuerySet[ToolCall]:
    """Return the calls of the notice's run that wait for a person's decision or answer."""
    asks = Q(state=WAITING, decision="") | Q(state=RUNNING, answer="") & ~Q(question="")
    return ToolCall.objects.filter(asks, run=notice.run_id).order_by("pk")


def _wait_until(notice: Notice, now: datetime) -> datetime | None:
    """Return when to check the notice again, or None if it may be sent now."""
    # A page that is in view will report whether it has shown the notice's news.
    views = SessionView.objects.filter(
        user=notice.user_id, session=notice.session_id, watched_until__gt=now
    )
    if (watched := views.values_list("watched_until", flat=True).first()) is not None:
        return watched
    choice = NoticeChoice.objects.filter(user=notice.user_id).first()
    return quiet_until(choice, now) if choice else None


def complete_message(message: NoticeMessage, attempt: DeliveryAttempt, *, now: datetime) -> str:
    """Record the outcome of an attempt, and the time of the next attempt if there is one.

    Return the message's state.
    """
    next_at = next_attempt(message.attempts, attempt, now=now, delays=RETRY_SECONDS)
    if attempt.arrived:
        state = SENT
    elif next_at:
        state = PENDING
    else:
        state = FAILED
    pending = NoticeMessage.objects.filter(pk=message.pk, state=PENDING)
    pending.update(state=state, next_at=next_at or now, sent_at=now if attempt.arrived else None)
    return state


def forget_notices(before: datetime) -> None:
    old = Notice.objects.filter(created_at__lt=before)
    remove_in_pieces(old.order_by("created_at", "pk"))


# Showing.


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingNotices:
    """The notices of a browser: those to be shown, and those that it may go on showing.

    ``new`` holds the notices to be shown, the oldest first. ``still`` holds all notices that are
    still news, whether they were shown or not.
    """

    new: list[Notice]
    still: list[Notice]


def read_waiting(user_pk: int, *, subscription_pk: int) -> WaitingNotices:
    """Return the notices of a browser, after checking again what the person may know."""
    messages = NoticeMessage.objects.filter(
        subscription=subscription_pk,
        notice__user=user_pk,
        notice__created_at__gt=timezone.now() - MAX_NOTICE_AGE,
        state__in=(PENDING, SENT),
    )
    rows = messages.select_related("notice__session__workspace", "notice__run")
    wanted = [
        message
        for message in rows.order_by("-pk")[: 2 * MAX_SHOWN_NOTICES]
        if may_receive(message.notice, by_email=False) and is_news(message.notice)
    ]
    new = [message.notice for message in wanted if message.shown_at is None]
    # The browser asks for all notices after any push, so leave out those that have to wait.
    now = timezone.now()
    new = [notice for notice in new if _wait_until(notice, now) is None]
    return WaitingNotices(
        new=new[:MAX_SHOWN_NOTICES][::-1], still=[message.notice for message in wanted]
    )


def record_shown(user_pk: int, *, subscription_pk: int, notices: Iterable[UUID]) -> None:
    """Record that the browser has shown these notices, which are then not sent to it any more."""
    messages = NoticeMessage.objects.filter(
        subscription=subscription_pk, notice__user=user_pk, notice__uuid__in=list(notices)
    )
    messages.filter(shown_at=None).update(shown_at=timezone.now(), state=SENT)
