"""The outbox of notices: kept with what they tell of, looked at again before they are sent.

A notice is written in the transaction of what it tells, once for each person. It is sent to
each of the person's devices at least once: a process that dies after it has sent and before it
has recorded that leaves it to another one. The browser shows each notice once (it asks for those
that it has not shown, and says which it has), so that a person is told exactly once.
"""

from collections.abc import Iterable, Mapping, Sequence
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
"""What is told of how a run ended. A person who stopped one knows."""

RETRY_SECONDS = (5, 30, 120, 600, 1_800, 7_200)

LEASE = timedelta(seconds=15)  # how long a claim holds: longer than an attempt may take

# That of an e-mail: mail servers may take ``SMTP_SECONDS`` for each step of the dialogue.
EMAIL_LEASE = timedelta(minutes=10)

EMAIL_DELAY = timedelta(seconds=60)  # who has seen it elsewhere until then gets no e-mail

MAX_NOTICE_AGE = timedelta(days=1)  # what is older is not shown any more

MAX_SHOWN_NOTICES = 20  # at once, in one browser

BATCH_ROWS = 500


# Written with what they tell of.


def enqueue_run_ended(run_pk: int) -> None:
    """Tell the people of a run how it ended, in the transaction that ends it. Where nobody
    wants to know, this costs one statement."""
    if not (people := _people_of(run_pk)):
        return
    run = Run.objects.select_related("session").get(pk=run_pk)
    event = EVENT_OF_STATE.get(run.state)
    if event and run.kind != runs.COMPACT:
        _enqueue(run, people, event=event, subject=run.uuid)


def enqueue_questions(call_pks: Sequence[int]) -> None:
    """Tell that calls wait for a person, in the transaction that asks: one notice for all
    calls of an answer."""
    first = ToolCall.objects.filter(pk__in=call_pks).order_by("pk").first()
    if first is not None and (people := _people_of(first.run_id)):
        run = Run.objects.select_related("session").get(pk=first.run_id)
        _enqueue(run, people, event=ASKS, subject=first.uuid)


def enqueue_question(call_pk: int, question: UUID) -> None:
    """Tell what a tool server asks during a call, in the transaction that asks."""
    call = ToolCall.objects.get(pk=call_pk)
    if people := _people_of(call.run_id):
        run = Run.objects.select_related("session").get(pk=call.run_id)
        _enqueue(run, people, event=ASKS, subject=question)


def _people_of(run_pk: int) -> list[int]:
    # SQL for what is usual, that nobody wants to be told: every run's end asks.
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
    told = Notice.objects.filter(subject=subject).values("user")
    choices = NoticeChoice.objects.filter(user__in=people, **{event: True}).exclude(user__in=told)
    muted = MutedSession.objects.filter(user=OuterRef("user"), session=run.session_id)
    now = timezone.now()
    for choice in choices.exclude(Exists(muted)).select_related("user"):
        notice = Notice.objects.create(
            user=choice.user,
            session=run.session,
            run=run,
            event=event,
            subject=subject,
            created_at=now,
        )
        messages = [
            NoticeMessage(notice=notice, subscription=one, next_at=now)
            for one in list_subscriptions(choice.user_id)
        ]
        if choice.by_email and choice.user.email:
            messages.append(NoticeMessage(notice=notice, next_at=now + EMAIL_DELAY))
        NoticeMessage.objects.bulk_create(messages)


# Sent.


def _due(now: datetime) -> QuerySet[NoticeMessage]:
    return NoticeMessage.objects.filter(state=PENDING, next_at__lte=now)


# Asked twice a second for ever: without the ORM it takes less than a tenth of the time. The state
# stands in it as it does in the condition of the index.
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
    """Claim messages that are due, with all that it takes to send them. What needs no telling
    any more is dropped, and what has to wait is put off."""
    due = _due(now).order_by().values_list("subscription", flat=True).distinct()[:BATCH_ROWS]
    free = allot(list(due), busy=busy, most=most, most_of_one=most_of_one)
    claimed: list[NoticeMessage] = []
    for subscription, count in free.items():
        found = _due(now).filter(subscription=subscription).order_by("next_at", "pk")
        found = found.select_related(
            "notice__session__workspace", "notice__run", "notice__user", "subscription__device"
        )
        claimed += [message for message in found[:count] if _claim(message, now)]
    return claimed


def _claim(message: NoticeMessage, now: datetime) -> bool:
    # Of several processes one gets it: the others see another time.
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
    """Whether the person may still be told of it, and is not past it."""
    subscription = message.subscription
    return (
        message.shown_at is None
        and notice.created_at > timezone.now() - MAX_NOTICE_AGE
        and notice.user.is_active
        and (subscription is None or is_signed_in(subscription))
        and may_receive(notice)
        and is_news(notice)
    )


def may_receive(notice: Notice) -> bool:
    """As a member who has not muted the session. What a reviewer reads is entered in the audit
    log, and a notice is not."""
    if rights.role_of(notice.session.workspace, notice.user_id) is None:
        return False
    muted = MutedSession.objects.filter(user=notice.user_id, session=notice.session_id)
    return not muted.exists()


def is_news(notice: Notice) -> bool:
    """Whether the person has not had it in view, and it has not been dealt with."""
    views = SessionView.objects.filter(user=notice.user_id, session=notice.session_id)
    if views.filter(seen_at__gt=notice.created_at).exists():
        return False
    if notice.event != ASKS:
        return True
    # The newest of a run tells of all that waits in it.
    asked_since = Notice.objects.filter(
        user=notice.user_id, run=notice.run_id, event=ASKS, pk__gt=notice.pk
    )
    return waiting_calls(notice).exists() and not asked_since.exists()


def waiting_calls(notice: Notice) -> QuerySet[ToolCall]:
    """Those of the notice's run that a person is asked about."""
    asks = Q(state=WAITING, decision="") | Q(state=RUNNING, answer="") & ~Q(question="")
    return ToolCall.objects.filter(asks, run=notice.run_id).order_by("pk")


def _wait_until(notice: Notice, now: datetime) -> datetime | None:
    """When to look at it again; None: it may be sent now."""
    # A page that is in view will say whether it has shown it.
    views = SessionView.objects.filter(
        user=notice.user_id, session=notice.session_id, watched_until__gt=now
    )
    if (watched := views.values_list("watched_until", flat=True).first()) is not None:
        return watched
    choice = NoticeChoice.objects.filter(user=notice.user_id).first()
    return quiet_until(choice, now) if choice else None


def complete_message(message: NoticeMessage, attempt: DeliveryAttempt, *, now: datetime) -> None:
    """Record how an attempt went, and when there is another."""
    again = None
    if not attempt.arrived:
        again = next_attempt(
            message.attempts, now=now, delays=RETRY_SECONDS, asked_to_wait=attempt.wait
        )
    state = SENT if attempt.arrived else PENDING if again else FAILED
    same = NoticeMessage.objects.filter(pk=message.pk, state=PENDING)
    same.update(state=state, next_at=again or now, sent_at=now if attempt.arrived else None)


def forget_notices(before: datetime) -> None:
    old = Notice.objects.filter(created_at__lt=before)
    remove_in_pieces(old.order_by("created_at", "pk"))


# Shown.


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingNotices:
    """``new``: to be shown, the oldest first; ``still``: these, and the ones that were shown
    before and are still news."""

    new: list[Notice]
    still: list[Notice]


def read_waiting(user_pk: int, *, subscription_pk: int) -> WaitingNotices:
    """What a browser is to show. Whether the person may know it is asked again."""
    messages = NoticeMessage.objects.filter(
        subscription=subscription_pk,
        notice__user=user_pk,
        notice__created_at__gt=timezone.now() - MAX_NOTICE_AGE,
        state__in=(PENDING, SENT),
    )
    found = messages.select_related("notice__session__workspace", "notice__run")
    still = [
        message
        for message in found.order_by("-pk")[: 2 * MAX_SHOWN_NOTICES]
        if may_receive(message.notice) and is_news(message.notice)
    ]
    new = [message.notice for message in still if message.shown_at is None]
    # A push is for all there is: one that is still to be sent may come with another.
    now = timezone.now()
    new = [notice for notice in new if _wait_until(notice, now) is None]
    return WaitingNotices(
        new=new[:MAX_SHOWN_NOTICES][::-1], still=[message.notice for message in still]
    )


def record_shown(user_pk: int, *, subscription_pk: int, notices: Iterable[UUID]) -> None:
    """The browser has shown these: what is still to be sent of them is not."""
    messages = NoticeMessage.objects.filter(
        subscription=subscription_pk, notice__user=user_pk, notice__uuid__in=list(notices)
    )
    messages.filter(shown_at=None).update(shown_at=timezone.now(), state=SENT)
