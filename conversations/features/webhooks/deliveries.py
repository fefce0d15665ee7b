"""The outbox of webhooks: messages are kept with what they tell, claimed, and settled.

A message is written in the transaction of what it tells, so neither is there without the
other. It is claimed for a while by whoever delivers it; should that process die, another
one does it again: a receiver gets each message at least once, with the same id.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from conversations.domain.errors import Conflict, NotFound
from conversations.domain.runs import COMPACT, FINAL_STATES
from conversations.domain.runs import WAITING_APPROVAL as RUN_WAITS
from conversations.domain.text import dump_json, load_json
from conversations.domain.tool_calls import read_asked
from conversations.models import Run, ToolCall, Turn

from .events import (
    DELIVERED,
    EVENT_OF_STATE,
    FAILED,
    PENDING,
    TEST,
    WAITING_APPROVAL,
    allot,
    next_attempt,
)
from .models import Delivery, Webhook
from .service import read_events, signing_keys

LEASE = timedelta(seconds=60)
"""How long a claim holds: longer than an attempt may take."""

TEXT_LIMIT = 10_000
"""Characters of an answer that a message has."""

MAX_DELIVERIES_SHOWN = 50

CHUNK = 500


def enqueue_run_ended(run_pk: int, session_pk: int) -> None:
    """Tell the workspace's webhooks how a run has ended, in the transaction that ends it.
    A summary for the window is nobody's question, and is not told. Where there is no
    webhook this costs one look into an index."""
    if not (webhooks := _webhooks_of(session_pk)):
        return
    run = _read_run(run_pk)
    if run.kind != COMPACT and run.state in FINAL_STATES:
        happened = _Happened(event=EVENT_OF_STATE[run.state], run=run, state=run.state)
        _keep(webhooks, happened)


def enqueue_questions(session_pk: int, call_pks: Sequence[int]) -> None:
    """Tell that calls wait for a person, in the transaction that asks."""
    if not call_pks or not (webhooks := _webhooks_of(session_pk)):
        return
    calls = list(ToolCall.objects.filter(pk__in=call_pks).order_by("pk"))
    run = _read_run(calls[0].run_id)
    _keep(webhooks, _Happened(event=WAITING_APPROVAL, run=run, state=RUN_WAITS, calls=calls))


def _webhooks_of(session_pk: int) -> list[Webhook]:
    """SQL for what is usual, that there is none: every run's end asks."""
    with connection.cursor() as cursor:
        cursor.execute(_IS_TOLD, [session_pk])
        if cursor.fetchone() is None:
            return []
    webhooks = Webhook.objects.filter(workspace__sessions=session_pk, is_active=True)
    return list(webhooks.order_by("pk"))


_IS_TOLD = """
SELECT 1 FROM conversations_session s
JOIN conversations_webhook w ON w.workspace_id = s.workspace_id
WHERE s.id = %s AND w.is_active LIMIT 1
"""


def _read_run(run_pk: int) -> Run:
    return Run.objects.select_related("session", "session__workspace").get(pk=run_pk)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Happened:
    event: str
    run: Run
    state: str
    calls: Sequence[ToolCall] = ()


def _keep(webhooks: Sequence[Webhook], happened: _Happened) -> None:
    now = timezone.now()
    told = [webhook for webhook in webhooks if happened.event in read_events(webhook)]
    Delivery.objects.bulk_create(
        _make_delivery(webhook, happened.event, _describe(webhook, happened), happened.run, now)
        for webhook in told
    )


def _make_delivery(
    webhook: Webhook, event: str, data: dict[str, Any], run: Run | None, now: datetime
) -> Delivery:
    body = {"type": event, "timestamp": now.isoformat(timespec="milliseconds"), "data": data}
    return Delivery(
        webhook=webhook,
        session=run.session if run else None,
        event=event,
        payload=dump_json(body),
        next_at=now,
        created_at=now,
    )


def _describe(webhook: Webhook, happened: _Happened) -> dict[str, Any]:
    """What a message tells: names and states, and words only where they are wanted."""
    run, session = happened.run, happened.run.session
    home = f"{webhook.site}/s/{session.uuid}/"
    links = {"session": home}
    if run.user_turn is not None:
        links["turn"] = f"{home}t/{run.user_turn}/"
    data: dict[str, Any] = {
        "workspace": session.workspace.slug,
        "session": str(session.uuid),
        "key": session.key,
        "channel": session.channel,
        "run": str(run.uuid),
        "kind": run.kind,
        "client_id": run.client_id,
        "state": happened.state,
        "error_code": run.error_code,
        "turn": run.user_turn,
        "calls": [_describe_call(webhook, call) for call in happened.calls],
        "links": links,
    }
    return data | _words(happened) if webhook.with_text else data


def _describe_call(webhook: Webhook, call: ToolCall) -> dict[str, str]:
    described = {"call": str(call.uuid), "tool": call.name}
    if webhook.with_text:
        described["summary"] = read_asked(load_json(call.asked, default={})).summary
    return described


def _words(happened: _Happened) -> dict[str, Any]:
    """The title, and the last that the model said in the run."""
    run = happened.run
    said = Turn.objects.filter(session=run.session_id, role="assistant")
    text = said.filter(number__gt=run.user_turn or 0).order_by("-number").values_list("content")
    answer = (text.first() or ("",))[0]
    return {
        "title": run.session.title,
        "text": answer[:TEXT_LIMIT],
        "text_is_cut": len(answer) > TEXT_LIMIT,
    }


def send_test(webhook: Webhook) -> Delivery:
    """A message that tells nothing, to see whether it arrives; also while the webhook is
    turned off it waits to be delivered."""
    data = {"workspace": webhook.workspace.slug, "links": {"workspace": _workspace_link(webhook)}}
    delivery = _make_delivery(webhook, TEST, data, None, timezone.now())
    delivery.save()
    return delivery


def _workspace_link(webhook: Webhook) -> str:
    return f"{webhook.site}/w/{webhook.workspace.slug}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message that was claimed. ``attempts`` counts this one."""

    pk: int
    webhook_pk: int
    webhook: UUID
    message_id: str
    url: str
    body: bytes
    keys: list[bytes]
    attempts: int


def has_due(now: datetime) -> bool:
    return _webhooks_with_due(now).exists()


def count_pending() -> int:
    return Delivery.objects.filter(state=PENDING).count()


def _webhooks_with_due(now: datetime) -> QuerySet[Webhook]:
    """By way of the webhooks, of which there are few: whatever waits for one that is off,
    and however much was delivered, each costs one look into the index of what waits."""
    due = _due(now).filter(webhook=OuterRef("pk"))
    return Webhook.objects.filter(Exists(due), is_active=True)


def _due(now: datetime) -> QuerySet[Delivery]:
    return Delivery.objects.filter(state=PENDING, next_at__lte=now)


def claim_due(
    now: datetime, *, busy: Mapping[int, int], most: int, most_of_one: int
) -> list[Outgoing]:
    """Claim messages that are due, the oldest of each webhook first. ``busy``: how many of
    each are on their way; of one there are never more than ``most_of_one``."""
    waiting = list(_webhooks_with_due(now).order_by("pk").values_list("pk", flat=True))
    given = allot(waiting, busy=busy, most=most, most_of_one=most_of_one)
    return [one for pk, free in given.items() for one in _claim_of(pk, now, free)]


def _claim_of(webhook_pk: int, now: datetime, free: int) -> list[Outgoing]:
    due = _due(now).filter(webhook=webhook_pk).select_related("webhook")
    found = due.order_by("next_at", "pk")[:free]
    return [_outgoing(delivery, now) for delivery in found if _claim(delivery, now)]


def _claim(delivery: Delivery, now: datetime) -> bool:
    """Of several processes one gets it: the others see another time."""
    same = Delivery.objects.filter(pk=delivery.pk, state=PENDING, next_at=delivery.next_at)
    return bool(same.update(next_at=now + LEASE, tried_at=now, attempts=F("attempts") + 1))


def _outgoing(delivery: Delivery, now: datetime) -> Outgoing:
    return Outgoing(
        pk=delivery.pk,
        webhook_pk=delivery.webhook_id,
        webhook=delivery.webhook.uuid,
        message_id=str(delivery.uuid),
        url=delivery.webhook.url,
        body=delivery.payload.encode(),
        keys=signing_keys(delivery.webhook, now=now),
        attempts=delivery.attempts + 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryAttempt:
    """How an attempt went. ``status`` is None where there was no answer; ``is_gone``: the
    receiver wants no more messages; ``wait`` is how long it asked to be left alone."""

    arrived: bool
    status: int | None = None
    error: str = ""
    is_gone: bool = False
    wait: timedelta | None = None


def complete_delivery(
    outgoing: Outgoing, attempt: DeliveryAttempt, *, now: datetime, off_after: timedelta
) -> bool:
    """Record how an attempt went, and when there is another. True where the webhook is
    turned off by it: nothing arrived for ``off_after``, or it is gone."""
    with transaction.atomic():
        again = None if attempt.arrived else _next(outgoing, attempt, now)
        pending = Delivery.objects.filter(pk=outgoing.pk, state=PENDING)
        state = DELIVERED if attempt.arrived else PENDING if again else FAILED
        pending.update(
            state=state,
            next_at=again or now,
            status=attempt.status,
            error=attempt.error[:255],
        )
        webhook = Webhook.objects.filter(pk=outgoing.webhook_pk)
        if attempt.arrived:
            webhook.exclude(failing_since=None).update(failing_since=None)
            return False
        webhook.filter(failing_since=None).update(failing_since=now)
        over = Q() if attempt.is_gone else Q(failing_since__lte=now - off_after)
        return bool(
            webhook.filter(over, is_active=True).update(is_active=False, switched_off_at=now)
        )


def _next(outgoing: Outgoing, attempt: DeliveryAttempt, now: datetime) -> datetime | None:
    if attempt.is_gone:
        return None
    return next_attempt(outgoing.attempts, now=now, asked_to_wait=attempt.wait)


def walk_deliveries(
    webhook: Webhook,
    *,
    place: int | None = None,
    is_back: bool = False,
    limit: int = MAX_DELIVERIES_SHOWN,
) -> list[Delivery]:
    """The latest ones, without what they say: from ``place``, the key of one that is left
    out itself, to older ones, or back to newer ones."""
    found = Delivery.objects.filter(webhook=webhook.pk).select_related("session")
    if place is not None:
        found = found.filter(Q(pk__gt=place) if is_back else Q(pk__lt=place))
    return list(found.order_by("pk" if is_back else "-pk").defer("payload")[:limit])


def deliver_again(webhook: Webhook, uuid: UUID) -> Delivery:
    """Have a message delivered once more, with the same id. Raises NotFound, and Conflict
    while it waits to be delivered."""
    with transaction.atomic():
        delivery = Delivery.objects.filter(webhook=webhook.pk, uuid=uuid).first()
        if delivery is None:
            raise NotFound("This delivery does not exist or has expired.")
        now = timezone.now()
        over = Delivery.objects.filter(pk=delivery.pk).exclude(state=PENDING)
        if not over.update(state=PENDING, attempts=0, next_at=now):
            raise Conflict("This message is already being delivered.", code="delivery_pending")
        delivery.refresh_from_db()
    return delivery


def forget_deliveries(before: datetime) -> int:
    """Remove what is older, delivered or not. Returns how many."""
    removed = 0
    old = Delivery.objects.filter(created_at__lt=before).order_by("created_at", "pk")
    while keys := list(old.values_list("pk", flat=True)[:CHUNK]):
        removed += Delivery.objects.filter(pk__in=keys).delete()[0]
    return removed
