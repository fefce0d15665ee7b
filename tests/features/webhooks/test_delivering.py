"""Sending webhooks: requests and signatures, failures, retries and refused addresses."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from conversations.agent.tools.web_client import is_public
from conversations.archive.audit import AuditOrigin
from conversations.domain.errors import Rejected
from conversations.features.webhooks.deliveries import claim_due, send_test
from conversations.features.webhooks.models import DELIVERED, EVENTS, PENDING, Delivery, Webhook
from conversations.features.webhooks.service import (
    create_webhook,
    read_secret,
    rotate_secret,
)
from conversations.features.webhooks.worker import (
    WebhookSender,
    allowed_addresses,
    attempt_delivery,
    check_webhook_url,
)
from conversations.models import Session
from conversations.runtime.outbox import MAX_SENDING_TO_ONE
from conversations.runtime.service import Runtime
from tests.runtime.conftest import ask
from tests.wire.server import WireThread

from .receiver import Receiver, open_receiver

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with open_receiver() as opened:
        yield opened


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Allow webhooks to private addresses."""
    monkeypatch.setattr(settings.LOOM, "webhook_private_addresses", True)


@sync_to_async
def make(session: Session, url: str) -> Webhook:
    return create_webhook(
        session.workspace,
        url=url,
        events=list(EVENTS),
        site="https://loom.example.org",
        origin=AuditOrigin(user=session.owner),
    )


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebhookSender, "interval", 0.02)


async def outgoing(webhook: Webhook) -> Delivery:
    """Return a test message that is claimed for sending."""
    await sync_to_async(send_test)(webhook)
    [claimed] = await sync_to_async(claim_due)(timezone.now(), busy={}, most=1, most_of_one=1)
    return claimed


@pytest.mark.usefixtures("private")
async def test_a_receiver_gets_a_signed_message_after_retries(
    start_runtime: Callable[..., Any], garden: Session, wire: WireThread, receiver: Receiver
) -> None:
    receiver.answers = [(302, {"Location": receiver.url}), 500, 200]
    webhook = await make(garden, receiver.url)
    runtime: Runtime = await start_runtime()
    run = await ask(runtime, garden, "Hello")
    for status in (302, 500, 200):
        await until_status(status)
        await Delivery.objects.filter(state=PENDING).aupdate(next_at=timezone.now())
    delivery = await Delivery.objects.aget()
    assert (delivery.state, delivery.status, delivery.attempts) == (DELIVERED, 200, 3)
    assert [message["data"]["run"] for message in receiver.messages] == [str(run.uuid)] * 3
    assert receiver.messages[0]["type"] == "run.completed"
    first = receiver.received[0]
    assert first.headers["content-type"] == "application/json"
    assert {one.headers["webhook-id"] for one in receiver.received} == {str(delivery.uuid)}
    assert all(one.is_signed_with(read_secret(webhook)) for one in receiver.received)
    assert not first.is_signed_with("whsec_AAAA")
    age = timezone.now().timestamp() - int(first.headers["webhook-timestamp"])
    assert age < 60
    await webhook.arefresh_from_db()
    assert webhook.failing_since is None


async def until_status(status: int) -> None:
    async with asyncio.timeout(60):
        while (await Delivery.objects.aget()).status != status:
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("private")
async def test_both_secrets_sign_during_a_rotation(garden: Session, receiver: Receiver) -> None:
    webhook = await make(garden, receiver.url)
    before = read_secret(webhook)
    await sync_to_async(rotate_secret)(webhook, origin=AuditOrigin(user=garden.owner))
    attempt = await attempt_delivery(await outgoing(webhook), allows=allowed_addresses())
    assert attempt.arrived
    [received] = receiver.received
    assert received.is_signed_with(before)
    assert received.is_signed_with(read_secret(webhook))


async def test_deliveries_to_private_addresses_are_refused(
    garden: Session, receiver: Receiver
) -> None:
    """The check looks at the address to which the socket would connect, not at the host name."""
    by_name = receiver.url.replace("127.0.0.1", "localhost")
    for url in (receiver.url, by_name):
        webhook = await make(garden, url)
        attempt = await attempt_delivery(await outgoing(webhook), allows=allowed_addresses())
        assert "only the public Internet can be reached" in attempt.error
        await Webhook.objects.filter(pk=webhook.pk).aupdate(is_active=False)
    assert not receiver.received
    assert allowed_addresses() is is_public


@pytest.mark.usefixtures("private")
async def test_error_responses_and_retry_after_are_understood(
    garden: Session, receiver: Receiver
) -> None:
    webhook = await make(garden, receiver.url)
    claimed = await outgoing(webhook)
    receiver.answers = [410, (429, {"Retry-After": "3600"}), (503, {"Retry-After": "soon"})]
    gone, busy, down = [
        await attempt_delivery(claimed, allows=allowed_addresses()) for _ in range(3)
    ]
    assert (gone.is_final, gone.status) == (True, 410)
    assert busy.wait == timedelta(hours=1)
    assert (down.wait, down.error) == (None, "The recipient responded with 503.")
    receiver.answers = [(503, {"Retry-After": f"Mon, 01 Jan 2024 00:00:00 +{'9' * 30}"})]
    assert (await attempt_delivery(claimed, allows=allowed_addresses())).wait is None
    claimed.webhook.url = "http://127.0.0.1:1/"
    attempt = await attempt_delivery(claimed, allows=allowed_addresses())
    assert (attempt.arrived, attempt.error) == (False, "127.0.0.1 is unreachable.")


@pytest.mark.parametrize("url", ["https://xn--a.invalid/", "https://[/"])
async def test_an_attempt_with_an_invalid_address_counts_as_a_failure(
    start_runtime: Callable[..., Any], garden: Session, url: str
) -> None:
    """One address has a host name with an invalid Punycode label, the other is no URL."""
    webhook = await make(garden, "https://hooks.example.org/")
    await Webhook.objects.aupdate(url=url)
    await sync_to_async(send_test)(webhook)
    await start_runtime()
    async with asyncio.timeout(60):
        while not (await Delivery.objects.aget()).error:
            await asyncio.sleep(0.01)
    await webhook.arefresh_from_db()
    assert webhook.failing_since is not None


def test_invalid_and_private_addresses_are_refused_when_entered() -> None:
    assert check_webhook_url(" https://hooks.example.org/a?b=c#d ") == (
        "https://hooks.example.org/a?b=c"
    )
    for bad in (
        "http://hooks.example.org/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://localhost/",
        "https://localhost./",
        "https://LOCALHOST/",
        "https://hooks.localhost/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.1/",
        "https://0177.0.0.1/",
        "https://0/",
        "https://127.1/",
        "https://127.0.0.1./",
        "https://①②⑦.0.0.1/",
        "https://10.0.0.1/",
        "https://169.254.169.254/",
        "https://100.64.0.1/",
        "https://224.0.0.1/",
        "https://[::]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:7f00:1]/",
        "https://[::7f00:1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[2002:7f00:1::]/",
        "https://[2001:0:7f00:1::]/",
        "https://[fe80::1%25lo]/",
        "https://[fd00::1]/",
        "https://ann:pass@example.org/",
        "ftp://example.org/",
        "hooks",
        "https://[]@",
        f"https://example.org/{'ü' * 1900}",
        "https://xn--a.example.org/x",
        "https://hooks.xn--.com/x",
    ):
        with pytest.raises(Rejected):
            check_webhook_url(bad)


@pytest.mark.usefixtures("private")
async def test_queued_messages_are_sent_without_waiting_for_the_interval(
    start_runtime: Callable[..., Any],
    garden: Session,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WebhookSender, "interval", 3600.0)
    webhook = await make(garden, receiver.url)
    for _ in range(3 * MAX_SENDING_TO_ONE):
        await sync_to_async(send_test)(webhook)
    await start_runtime()
    async with asyncio.timeout(60):
        while await Delivery.objects.exclude(state=DELIVERED).aexists():
            await asyncio.sleep(0.01)
    assert len({one.headers["webhook-id"] for one in receiver.received}) == 3 * MAX_SENDING_TO_ONE
    assert len(receiver.received) == 3 * MAX_SENDING_TO_ONE


@pytest.mark.usefixtures("private")
async def test_a_message_in_flight_at_shutdown_is_sent_again(
    start_runtime: Callable[..., Any], garden: Session, receiver: Receiver
) -> None:
    webhook = await make(garden, receiver.url)
    receiver.answering.clear()
    await sync_to_async(send_test)(webhook)
    runtime: Runtime = await start_runtime()
    async with asyncio.timeout(60):
        while not receiver.received:
            await asyncio.sleep(0.01)
    await runtime.stop()
    receiver.answering.set()
    assert (await Delivery.objects.aget()).state == PENDING
    await Delivery.objects.aupdate(next_at=timezone.now())  # the lease has ended
    await start_runtime()
    await until_status(204)
    first, again = receiver.received
    assert first.headers["webhook-id"] == again.headers["webhook-id"]
