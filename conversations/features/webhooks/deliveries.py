"""The outbox of webhooks: enqueueing, claiming and completing messages.

A message is written in the transaction of the event that it reports, so that neither exists without
the other. The process that delivers a message claims it for a while. If that process dies, another
one delivers the message again. So a receiver gets each message at least once, with the same id.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from conversations.archive.append import has_row, moment_value, remove_in_pieces
from conversations.archive.turns import are_turns_within, read_rewound
from conversations.domain import runs
from conversations.domain.errors import Conflict, require_found
from conversations.domain.text import dump_json, load_json
from conversations.domain.tool_calls import read_asked
from conversations.domain.tool_questions import make_asked_notice, read_question
from conversations.models import Run, ToolCall, Turn
from conversations.runtime.outbox import DeliveryAttempt, allot, next_attempt

from .models import (
    DELIVERED,
    FAILED,
    PENDING,
    RUN_COMPLETED,
    RUN_FAILED,
    RUN_INTERRUPTED,
    RUN_STOPPED,
    TEST,
    WAITING_APPROVAL,
    Delivery,
    Webhook,
)
from .service import read_events

EVENT_OF_STATE = {
    runs.COMPLETED: RUN_COMPLETED,
    runs.FAILED: RUN_FAILED,
    runs.STOPPED: RUN_STOPPED,
    runs.INTERRUPTED: RUN_INTERRUPTED,
}

RETRY_SECONDS = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds after each attempt until the next one, as the specification suggests."""

LEASE = timedelta(seconds=60)  # how long a claim holds: longer than an attempt may take

MAX_TEXT_CHARS = 10_000  # of an answer

MAX_DELIVERIES_SHOWN = 50


def enqueue_run_ended(run_pk: int, session_pk: int) -> None:
    """Enqueue messages that a run has ended, in the transaction that ends it.

    If the workspace has no webhook, this costs one look-up in an index.
    """
    if not (webhooks := _webhooks_of(session_pk)):
        return
    run = _read_run(run_pk)
    # A compaction answers no message, so it is not reported.
    if run.kind != runs.COMPACT and run.state in runs.FINAL_STATES:
        _save_deliveries(webhooks, EVENT_OF_STATE[run.state], run, state=run.state)


def enqueue_questions(session_pk: int, call_pks: Sequence[int]) -> None:
    """Enqueue messages that tool calls wait for a person, in the transaction that asks.

    A call waits for a decision, or for the answer to a question of its tool server.
    """
    if not (webhooks := _webhooks_of(session_pk)):
        return
    calls = list(ToolCall.objects.filter(pk__in=call_pks).order_by("pk"))
    run = _read_run(calls[0].run_id)
    _save_deliveries(webhooks, WAITING_APPROVAL, run, state=runs.WAITING_APPROVAL, calls=calls)


def _webhooks_of(session_pk: int) -> list[Webhook]:
    # Raw SQL, because this is executed whenever a run ends, and usually finds nothing.
    if not has_row(
        "SELECT 1 FROM conversations_session s"
        " JOIN conversations_webhook w ON w.workspace_id = s.workspace_id"
        " WHERE s.id = %s AND w.is_active LIMIT 1",
        [session_pk],
    ):
        return []
    webhooks = Webhook.objects.filter(workspace__sessions=session_pk, is_active=True)
    return list(webhooks.order_by("pk"))


def _read_run(run_pk: int) -> Run:
    return Run.objects.select_related("session", "session__workspace").get(pk=run_pk)


def _save_deliveries(
    webhooks: Sequence[Webhook], event: str, run: Run, *, state: str, calls: Sequence[ToolCall] = ()
) -> None:
    Delivery.objects.bulk_create(
        _make_delivery(webhook, event, _describe(webhook, run, state, calls), session=run.session)
        for webhook in webhooks
        if event in read_events(webhook)
    )


def _make_delivery(webhook: Webhook, event: str, data: dict[str, Any], **fields: Any) -> Delivery:
    now = timezone.now()
    body = {"type": event, "timestamp": now.isoformat(timespec="milliseconds"), "data": data}
    return Delivery(
        webhook=webhook, event=event, payload=dump_json(body), next_at=now, created_at=now, **fields
    )


def _describe(webhook: Webhook, run: Run, state: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    # The data of a message: names and states, and text only if the webhook asks for it.
    session = run.session
    session_url = f"{webhook.site}/s/{session.uuid}/"
    turn = {} if run.user_turn is None else {"turn": f"{session_url}t/{run.user_turn}/"}
    described_calls = [{"call": str(call.uuid), "tool": call.name} for call in calls]
    data: dict[str, Any] = {
        "workspace": session.workspace.slug,
        "session": str(session.uuid),
        "key": session.key,
        "channel": session.channel,
        "run": str(run.uuid),
        "kind": run.kind,
        "client_id": run.client_id,
        "state": state,
        "error_code": run.error_code,
        "turn": run.user_turn,
        "calls": described_calls,
        "links": {"session": session_url} | turn,
    }
    if webhook.with_text:
        for described, call in zip(described_calls, calls, strict=True):
            described["summary"] = _summary_of(call)
        answers = Turn.objects.filter(session=session, role="assistant")
        if session.rewind_count:  # leave out, for instance, an answer that this run replaces
            answers = answers.exclude(are_turns_within(read_rewound(session.pk, "turn")))
        latest = answers.filter(number__gt=run.user_turn or 0).order_by("-number")
        answer = latest.values_list("content", flat=True).first() or ""
        data["title"] = session.title
        data["text"] = answer[:MAX_TEXT_CHARS]
        data["text_is_cut"] = len(answer) > MAX_TEXT_CHARS
    return data


def _summary_of(call: ToolCall) -> str:
    if (question := read_question(load_json(call.question, default=None))) is not None:
        return make_asked_notice(question).text
    return read_asked(load_json(call.asked, default={})).summary


def send_test(webhook: Webhook) -> Delivery:
    """Enqueue a test message. Raise Conflict if the webhook is off."""
    _require_on(webhook)
    slug = webhook.workspace.slug
    data = {"workspace": slug, "links": {"workspace": f"{webhook.site}/w/{slug}/"}}
    delivery = _make_delivery(webhook, TEST, data)
    delivery.save()
    return delivery


def _require_on(webhook: Webhook) -> None:
    if not webhook.is_active:
        raise Conflict("This webhook is off. Turn it on first.", code="hook_off")


# Selects a row if any webhook has a message that is due (``_webhooks_with_due``). This query is
# executed every second for as long as the server runs. Without the ORM, it takes less than a tenth
# of the time. The state is a literal so that the partial index applies.
HAS_DUE = (
    "SELECT 1 FROM conversations_webhook w WHERE w.is_active AND EXISTS ("  # noqa: S608 (a constant)
    f"SELECT 1 FROM conversations_delivery WHERE webhook_id = w.id AND state = '{PENDING}'"
    " AND next_at <= %s) LIMIT 1"
)


def has_due(now: datetime) -> bool:
    return has_row(HAS_DUE, [moment_value(now)])


def count_pending() -> int:
    return Delivery.objects.filter(state=PENDING).count()


def _webhooks_with_due(now: datetime) -> QuerySet[Webhook]:
    # Start from the webhooks, of which there are few. Each costs one look-up in the index of
    # pending messages, however many messages were delivered or wait for webhooks that are off.
    due = _due(now).filter(webhook=OuterRef("pk"))
    return Webhook.objects.filter(Exists(due), is_active=True)


def _due(now: datetime) -> QuerySet[Delivery]:
    return Delivery.objects.filter(state=PENDING, next_at__lte=now)


def claim_due(
    now: datetime, *, busy: Mapping[int, int], most: int, most_of_one: int
) -> list[Delivery]:
    """Claim messages that are due, the oldest of each webhook first.

    The messages have their webhooks loaded, and their ``attempts`` include this one. ``busy`` is
    the number of messages that are being sent to each webhook, which never exceeds
    ``most_of_one``.
    """
    waiting = list(_webhooks_with_due(now).order_by().values_list("pk", flat=True))
    claimed: list[Delivery] = []
    for pk, free in allot(waiting, busy=busy, most=most, most_of_one=most_of_one).items():
        due = _due(now).filter(webhook=pk).select_related("webhook").order_by("next_at", "pk")
        claimed += [delivery for delivery in due[:free] if _claim(delivery, now)]
    return claimed


def _claim(delivery: Delivery, now: datetime) -> bool:
    # Only one of several processes can claim a message, because that changes ``next_at``.
    same = Delivery.objects.filter(pk=delivery.pk, state=PENDING, next_at=delivery.next_at)
    if not same.update(next_at=now + LEASE, tried_at=now, attempts=F("attempts") + 1):
        return False
    delivery.attempts += 1
    return True


def complete_delivery(
    delivery: Delivery, attempt: DeliveryAttempt, *, now: datetime, off_after: timedelta
) -> bool:
    """Record the outcome of an attempt, and the time of the next attempt if there is one.

    Return True if the webhook was turned off, because no message arrived for ``off_after`` or the
    receiver said that it is gone.
    """
    next_at = next_attempt(delivery.attempts, attempt, now=now, delays=RETRY_SECONDS)
    if attempt.arrived:
        state = DELIVERED
    elif next_at:
        state = PENDING
    else:
        state = FAILED
    with transaction.atomic():
        Delivery.objects.filter(pk=delivery.pk, state=PENDING).update(
            state=state,
            next_at=next_at or now,
            status=attempt.status,
            error=attempt.error[:255],
        )
        webhook = Webhook.objects.filter(pk=delivery.webhook_id)
        if attempt.arrived:
            webhook.exclude(failing_since=None).update(failing_since=None)
            return False
        webhook.filter(failing_since=None).update(failing_since=now)
        condition = Q() if attempt.is_final else Q(failing_since__lte=now - off_after)
        turned_off = webhook.filter(condition, is_active=True)
        return bool(turned_off.update(is_active=False, switched_off_at=now))


def walk_deliveries(
    webhook: Webhook,
    *,
    place: int | None = None,
    is_back: bool = False,
    limit: int = MAX_DELIVERIES_SHOWN,
) -> list[Delivery]:
    """Return deliveries of a webhook without their payloads, the latest first.

    ``place`` is the primary key of the delivery after which the result begins. With ``is_back``,
    return the deliveries that are newer than ``place``, the oldest first.
    """
    rows = Delivery.objects.filter(webhook=webhook.pk).select_related("session")
    if place is not None:
        rows = rows.filter(Q(pk__gt=place) if is_back else Q(pk__lt=place))
    return list(rows.order_by("pk" if is_back else "-pk").defer("payload")[:limit])


def deliver_again(webhook: Webhook, uuid: UUID) -> Delivery:
    """Deliver a message again, with the same id.

    Raise NotFound if the delivery does not exist, and Conflict if it is still pending or the
    webhook is off.
    """
    _require_on(webhook)
    with transaction.atomic():
        row = Delivery.objects.filter(webhook=webhook.pk, uuid=uuid).first()
        delivery = require_found(row, "This delivery does not exist or has expired.")
        now = timezone.now()
        ended = Delivery.objects.filter(pk=delivery.pk).exclude(state=PENDING)
        if not ended.update(state=PENDING, attempts=0, next_at=now):
            raise Conflict("This message is already being delivered.", code="delivery_pending")
        delivery.refresh_from_db()
    return delivery


def forget_deliveries(before: datetime) -> int:
    """Remove older messages, delivered or not, and return how many were removed."""
    old = Delivery.objects.filter(created_at__lt=before)
    return remove_in_pieces(old.order_by("created_at", "pk"))
