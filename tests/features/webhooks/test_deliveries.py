"""The outbox of webhooks: saved messages, secrets, claims, retries and their end."""

import base64
import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from conversations.archive.append import NewEvent, prepare_event
from conversations.archive.audit import AuditOrigin
from conversations.archive.messages import accept_message, regenerate
from conversations.archive.purge import PurgeRequest, purge
from conversations.archive.runs import ClaimedRun, claim_next_run, finish_run, interrupt_run
from conversations.archive.sessions import get_session
from conversations.archive.tool_calls import ask_question
from conversations.archive.workspaces import create_workspace
from conversations.domain.audit import WEBHOOK
from conversations.domain.errors import Conflict, NotFound, Rejected
from conversations.domain.tool_questions import ToolQuestion, make_asked_notice
from conversations.feature import features
from conversations.features.webhooks import deliveries
from conversations.features.webhooks.deliveries import (
    LEASE,
    RETRY_SECONDS,
    DeliveryAttempt,
    claim_due,
    complete_delivery,
    deliver_again,
    forget_deliveries,
    has_due,
    send_test,
    walk_deliveries,
)
from conversations.features.webhooks.models import (
    DELIVERED,
    EVENTS,
    FAILED,
    PENDING,
    RUN_COMPLETED,
    Delivery,
    Webhook,
)
from conversations.features.webhooks.service import (
    MAX_SECRETS,
    MAX_WEBHOOKS,
    SECRET_OVERLAP,
    change_webhook,
    create_webhook,
    get_webhook,
    list_webhooks,
    read_secret,
    remove_webhook,
    rotate_secret,
    signing_keys,
)
from conversations.models import AuditEntry, Run, Session, ToolCall, Workspace
from tests.waiting_calls import leave_question
from tests.web.conftest import say

pytestmark = pytest.mark.django_db

OFF_AFTER = timedelta(days=5)

URL = "https://hooks.example.org/token-in-the-path"


def make(workspace: Workspace, user: User, **wish: Any) -> Webhook:
    usual: dict[str, Any] = {"url": URL, "events": list(EVENTS)}
    return create_webhook(
        workspace,
        **usual | wish,
        site="https://loom.example.org",
        origin=AuditOrigin(user=user),
    )


@pytest.fixture
def webhook(workspace: Workspace, user: User) -> Webhook:
    return make(workspace, user)


def begin(session: Session) -> ClaimedRun:
    claimed = accept_message(
        session,
        client_id=uuid4().hex,
        text="«how are the beans»",
        user_pk=session.owner_id,
        max_queued=5,
        owner="here",
    ).claimed
    assert claimed is not None
    return claimed


def end(session: Session, state: str = "completed", **fields: Any) -> ClaimedRun:
    claimed = begin(session)
    say(session, "«how are the beans»", "«the beans are well»")
    finish_run(claimed, state=state, payloads=[], **fields)
    return claimed


def messages() -> list[dict[str, Any]]:
    return [json.loads(one.payload) for one in Delivery.objects.order_by("pk")]


def test_the_end_of_a_run_makes_a_message_without_content(
    webhook: Webhook, session: Session
) -> None:
    claimed = end(session, "failed", error_code="overloaded")
    [message] = messages()
    assert message["type"] == "run.failed"
    assert message["data"] == {
        "workspace": "garden",
        "session": str(session.uuid),
        "key": None,
        "channel": "web",
        "run": str(claimed.run),
        "kind": "message",
        "client_id": Run.objects.get().client_id,
        "state": "failed",
        "error_code": "overloaded",
        "turn": 1,
        "calls": [],
        "links": {
            "session": f"https://loom.example.org/s/{session.uuid}/",
            "turn": f"https://loom.example.org/s/{session.uuid}/t/1/",
        },
    }
    assert "«" not in Delivery.objects.get().payload


def test_text_is_included_if_the_webhook_asks_for_it(
    workspace: Workspace, user: User, session: Session
) -> None:
    make(workspace, user, with_text=True)
    end(session)
    [message] = messages()
    assert message["data"]["text"] == "«the beans are well»"
    assert message["data"]["title"] == "«how are the beans»"
    assert message["data"]["text_is_cut"] is False


def test_a_replaced_answer_is_not_sent_as_the_new_one(
    workspace: Workspace, user: User, session: Session
) -> None:
    make(workspace, user, with_text=True)
    end(session)
    regenerate(get_session(session.uuid), client_id="again", turn=None, user_pk=user.pk)
    claimed = claim_next_run(session.pk, owner="here")
    assert claimed is not None
    finish_run(claimed, state="failed", payloads=[], error_code="overloaded")
    assert messages()[-1]["data"]["text"] == ""


def test_each_webhook_gets_only_the_events_that_it_asks_for(
    workspace: Workspace, user: User, session: Session
) -> None:
    wanted = make(workspace, user, events=[RUN_COMPLETED])
    make(workspace, user, events=["run.failed"])
    make(workspace, user, is_active=False)
    end(session)
    assert [one.webhook for one in Delivery.objects.all()] == [wanted]


def test_an_interrupted_run_makes_a_message_and_a_summary_does_not(
    webhook: Webhook, session: Session
) -> None:
    claimed = begin(session)
    interrupt_run(claimed.run_pk, owner=claimed.owner)
    summary = begin(session)
    Run.objects.filter(pk=summary.run_pk).update(kind="compact")
    finish_run(summary, state="completed", payloads=[])
    assert [message["type"] for message in messages()] == ["run.interrupted"]


def test_an_approval_request_makes_a_message(
    workspace: Workspace, user: User, session: Session
) -> None:
    make(workspace, user, events=["run.waiting_approval"])
    make(workspace, user, events=["run.waiting_approval"], with_text=True)
    call = leave_question(session)
    plain, wordy = messages()
    assert plain["data"]["state"] == "waiting_approval"
    assert plain["data"]["calls"] == [{"call": str(call.uuid), "tool": "add"}]
    assert wordy["data"]["calls"][0]["summary"] == "Add to done.txt"


def test_a_tool_server_question_makes_a_message(
    workspace: Workspace, user: User, session: Session
) -> None:
    call = leave_question(session)
    ToolCall.objects.update(state="running")
    make(workspace, user, events=["run.waiting_approval"])
    make(workspace, user, events=["run.waiting_approval"], with_text=True)
    question = ToolQuestion(id=str(uuid4()), call=str(call.uuid), server="beds", message="Which?")
    event = prepare_event(NewEvent(payload=make_asked_notice(question)), session_uuid=session.uuid)
    ask_question(session.pk, call_pk=call.pk, question=question, event=event)
    plain, wordy = messages()
    assert plain["data"]["state"] == "waiting_approval"
    assert plain["data"]["calls"] == [{"call": str(call.uuid), "tool": "add"}]
    assert wordy["data"]["calls"][0]["summary"] == "beds asks: Which?"


def test_a_rolled_back_transaction_leaves_no_message(webhook: Webhook, session: Session) -> None:
    claimed = begin(session)
    with transaction.atomic():
        finish_run(claimed, state="completed", payloads=[])
        assert messages()
        transaction.set_rollback(True)
    assert not messages()


def test_without_a_webhook_the_end_of_a_run_takes_one_more_query(
    workspace: Workspace, user: User, session: Session, tmp_path: Any
) -> None:
    (tmp_path / "other").mkdir()
    make(create_workspace(root=tmp_path / "other", name="Other", owner=user), user)
    claimed = begin(session)
    with CaptureQueriesContext(connection) as queries:
        finish_run(claimed, state="completed", payloads=[])
    looks = [q["sql"] for q in queries if "webhook" in q["sql"] or "delivery" in q["sql"]]
    assert len(looks) == 1
    assert looks[0].strip().startswith("SELECT")


def test_too_many_webhooks_and_unknown_events_are_refused(workspace: Workspace, user: User) -> None:
    with pytest.raises(Rejected):
        make(workspace, user, events=[])
    with pytest.raises(Rejected):
        make(workspace, user, events=[RUN_COMPLETED, "run.begun"])
    for _ in range(MAX_WEBHOOKS):
        make(workspace, user)
    with pytest.raises(Rejected, match="Delete one first"):
        make(workspace, user)
    assert len(list_webhooks(workspace)) == MAX_WEBHOOKS


def test_the_secret_is_stored_nowhere_and_rotated_with_an_overlap(
    webhook: Webhook, workspace: Workspace, user: User
) -> None:
    first = read_secret(webhook)
    assert first == read_secret(get_webhook(workspace, webhook.uuid))
    rotate_secret(webhook, origin=AuditOrigin(user=user))
    assert webhook.rotated_at is not None
    assert read_secret(webhook) != first
    assert read_secret(make(workspace, user)) not in (first, read_secret(webhook))
    assert len(signing_keys(webhook, now=webhook.rotated_at)) == 2
    assert len(signing_keys(webhook, now=webhook.rotated_at + SECRET_OVERLAP)) == 1
    rotate_secret(webhook, origin=AuditOrigin(user=user))
    keys = signing_keys(webhook, now=webhook.rotated_at)
    assert [base64.b64encode(key).decode() for key in (keys[0], keys[-1])] == [
        read_secret(webhook).removeprefix("whsec_"),
        first.removeprefix("whsec_"),  # still valid after a second rotation
    ]
    assert len(keys) == 3
    stored = str(list(Webhook.objects.values())) + str(list(AuditEntry.objects.values()))
    assert first.removeprefix("whsec_") not in stored
    assert "token-in-the-path" not in str(list(AuditEntry.objects.values()))


def test_a_change_keeps_other_changes_made_since_the_webhook_was_read(
    webhook: Webhook, workspace: Workspace, user: User
) -> None:
    origin = AuditOrigin(user=user)
    read = get_webhook(workspace, webhook.uuid)
    rotate_secret(webhook, origin=origin)
    failing_since = timezone.now()
    Webhook.objects.update(failing_since=failing_since)
    change_webhook(
        read, url="https://b.example.org/", events=[RUN_COMPLETED], site="", origin=origin
    )
    webhook.refresh_from_db()
    assert (webhook.generation, webhook.host) == (2, "b.example.org")
    assert webhook.failing_since == failing_since
    assert len(signing_keys(webhook, now=timezone.now())) == 2
    assert (read.generation, read.host) == (2, "b.example.org")


def test_the_number_of_valid_secrets_is_limited(
    webhook: Webhook, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(MAX_SECRETS - 1):
        rotate_secret(webhook, origin=AuditOrigin(user=user))
    with pytest.raises(Conflict):
        rotate_secret(webhook, origin=AuditOrigin(user=user))
    tomorrow = timezone.now() + SECRET_OVERLAP
    monkeypatch.setattr(timezone, "now", lambda: tomorrow)
    rotate_secret(webhook, origin=AuditOrigin(user=user))
    assert len(signing_keys(webhook, now=timezone.now())) == 2


def test_a_secret_replaced_more_than_a_day_ago_does_not_sign(
    webhook: Webhook, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = timezone.now()
    for number in range(1, 2 * MAX_SECRETS):
        now = began + number * (SECRET_OVERLAP - timedelta(minutes=30))
        monkeypatch.setattr(timezone, "now", lambda now=now: now)
        rotate_secret(webhook, origin=AuditOrigin(user=user))
        # The new secret and the two before it, which were replaced within the last day.
        assert len(signing_keys(webhook, now=now)) == min(number + 1, 3)


def test_secrets_of_a_removed_webhook_do_not_count_for_the_next(
    webhook: Webhook, user: User
) -> None:
    for _ in range(MAX_SECRETS - 1):
        rotate_secret(webhook, origin=AuditOrigin(user=user))
    remove_webhook(webhook, origin=AuditOrigin(user=user))
    anew = make(webhook.workspace, user, uuid=webhook.uuid)
    rotate_secret(anew, origin=AuditOrigin(user=user))
    assert (anew.generation, anew.oldest_generation) == (2, 1)


def test_every_change_of_a_webhook_is_entered_in_the_audit_log(
    webhook: Webhook, session: Session, user: User
) -> None:
    origin = AuditOrigin(user=user)
    end(session)
    rotate_secret(webhook, origin=origin)
    change_webhook(
        webhook,
        url="https://b.example.org/",
        events=[RUN_COMPLETED],
        is_active=False,
        site="",
        origin=origin,
    )
    remove_webhook(webhook, origin=origin)
    entries = AuditEntry.objects.filter(action=WEBHOOK, workspace="garden").order_by("number")
    told = [json.loads(entry.metadata) for entry in entries]
    assert [one["what"] for one in told] == ["made", "rotated", "changed", "removed"]
    assert told[-1]["host"] == "b.example.org"
    assert not Delivery.objects.exists()
    with pytest.raises(NotFound):
        get_webhook(session.workspace, webhook.uuid)


def test_a_purge_deletes_the_deliveries_about_the_session(
    webhook: Webhook, session: Session, user: User
) -> None:
    end(session)
    send_test(webhook)
    order = PurgeRequest(pk=None, reason="x", by=user, by_name="", by_policy=False)
    purge(session, order=order, origin=AuditOrigin(user=user), now=timezone.now())
    assert [one.event for one in Delivery.objects.all()] == ["webhook.test"]


def claim(**fields: Any) -> list[Delivery]:
    usual: dict[str, Any] = {"busy": {}, "most": 10, "most_of_one": 10}
    now = fields.pop("now", timezone.now())
    return claim_due(now, **usual | fields)


def test_a_message_is_claimed_again_only_after_its_lease(webhook: Webhook) -> None:
    delivery = send_test(webhook)
    now = timezone.now()
    assert has_due(now)
    [outgoing] = claim(now=now)
    assert outgoing == delivery
    assert not has_due(now)
    assert not claim(now=now)
    [again] = claim(now=now + LEASE)
    assert (again.uuid, again.attempts) == (delivery.uuid, 2)


def test_only_one_of_two_processes_claims_a_message(webhook: Webhook) -> None:
    send_test(webhook)
    seen, now = Delivery.objects.get(), timezone.now()
    assert [deliveries._claim(seen, now) for _ in range(2)] == [True, False]


def test_a_busy_webhook_does_not_delay_another(
    webhook: Webhook, workspace: Workspace, user: User
) -> None:
    other = make(workspace, user)
    for _ in range(5):
        send_test(webhook)
    send_test(other)
    claimed = claim(busy={webhook.pk: 1}, most_of_one=2)
    assert [one.webhook_id for one in claimed] == [other.pk, webhook.pk]
    assert len(claim(most=3)) == 3


def test_failing_webhooks_do_not_delay_a_later_one(
    webhook: Webhook, workspace: Workspace, user: User
) -> None:
    """The failing webhooks fill each round's room and have enough messages for all rounds."""
    rounds = 60
    dead = [webhook, make(workspace, user)]
    for one in dead:
        for _ in range(rounds):
            send_test(one)
    mine, now = send_test(make(workspace, user)), timezone.now()
    for _ in range(rounds):
        claimed = claim(now=now, most=len(dead))
        if mine in claimed:
            return
        for delivery in claimed:
            complete_delivery(delivery, BROKEN, now=now, off_after=OFF_AFTER)
    pytest.fail("It was not its turn.")


def test_delivered_messages_do_not_slow_down_polling(webhook: Webhook) -> None:
    """Each query uses the index of the pending deliveries."""
    send_test(webhook)
    with CaptureQueriesContext(connection) as queries:
        has_due(timezone.now())
        claim()
    looks = [q["sql"] for q in queries if q["sql"].startswith("SELECT")]
    assert len(looks) == 3
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            for look in looks:
                cursor.execute(f"EXPLAIN QUERY PLAN {look}")
                plan = " ".join(row[3] for row in cursor.fetchall())
                assert "INDEX delivery_due" in plan
                assert "SCAN conversations_delivery" not in plan


def test_a_delivered_message_ends_the_failure_of_its_webhook(webhook: Webhook) -> None:
    send_test(webhook)
    Webhook.objects.update(failing_since=timezone.now())
    [outgoing] = claim()
    done = DeliveryAttempt(arrived=True, status=204)
    assert not complete_delivery(outgoing, done, now=timezone.now(), off_after=OFF_AFTER)
    [delivery] = walk_deliveries(webhook)
    assert (delivery.state, delivery.status, delivery.attempts) == (DELIVERED, 204, 1)
    webhook.refresh_from_db()
    assert webhook.failing_since is None


BROKEN = DeliveryAttempt(arrived=False, status=500, error="The recipient responded with 500.")


def test_a_failing_message_is_retried_until_it_is_given_up(webhook: Webhook) -> None:
    send_test(webhook)
    now = timezone.now()
    for _ in range(len(RETRY_SECONDS) + 1):
        [outgoing] = claim(now=now)
        complete_delivery(outgoing, BROKEN, now=now, off_after=timedelta(days=99))
        [delivery] = walk_deliveries(webhook)
        now = max(now, delivery.next_at)
    assert (delivery.state, delivery.status) == (FAILED, 500)
    assert delivery.error == "The recipient responded with 500."
    assert not claim(now=now + timedelta(days=9))
    deliver_again(webhook, delivery.uuid)
    [outgoing] = claim(now=now)
    assert (outgoing.uuid, outgoing.attempts) == (delivery.uuid, 1)


def test_a_long_failing_webhook_is_turned_off_and_can_be_turned_on(
    webhook: Webhook, user: User
) -> None:
    now = timezone.now()
    for days, is_off in ((0, False), (4, False), (5, True)):
        Delivery.objects.filter(pk=send_test(webhook).pk).update(next_at=now)
        at = now + timedelta(days=days)
        outgoing = claim(now=at)[-1]
        assert complete_delivery(outgoing, BROKEN, now=at, off_after=OFF_AFTER) is is_off
    webhook.refresh_from_db()
    assert not webhook.is_active
    assert webhook.switched_off_at is not None
    assert not has_due(now + timedelta(days=9))
    origin = AuditOrigin(user=user)
    change_webhook(webhook, url=URL, events=[RUN_COMPLETED], site="", origin=origin)
    webhook.refresh_from_db()
    assert (webhook.failing_since, webhook.switched_off_at) == (None, None)
    assert len(claim()) == 3


def test_a_410_response_turns_the_webhook_off(webhook: Webhook) -> None:
    send_test(webhook)
    [outgoing] = claim()
    gone = DeliveryAttempt(arrived=False, status=410, is_final=True)
    assert complete_delivery(outgoing, gone, now=timezone.now(), off_after=OFF_AFTER)
    assert walk_deliveries(webhook)[0].state == FAILED
    webhook.refresh_from_db()
    assert not webhook.is_active


def test_a_pending_message_cannot_be_sent_again(webhook: Webhook) -> None:
    delivery = send_test(webhook)
    with pytest.raises(Conflict):
        deliver_again(webhook, delivery.uuid)
    with pytest.raises(NotFound):
        deliver_again(webhook, uuid4())
    assert delivery.state == PENDING


def test_old_deliveries_are_deleted(webhook: Webhook) -> None:
    send_test(webhook)
    assert forget_deliveries(timezone.now() - timedelta(days=1)) == 0
    assert forget_deliveries(timezone.now() + timedelta(days=1)) == 1
    send_test(webhook)
    later = timezone.now() + timedelta(days=settings.LOOM.webhook_days, hours=1)
    for feature in features():
        feature.forget_old(later)
    assert not Delivery.objects.exists()
