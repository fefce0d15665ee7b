"""Sending notices: the content of a push, failures, refused addresses, and e-mails."""

import asyncio
import json
import threading
from collections.abc import Callable
from datetime import timedelta
from smtplib import SMTPAuthenticationError, SMTPDataError, SMTPRecipientsRefused
from typing import Any
from unittest.mock import Mock

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core import mail
from django.core.mail import EmailMessage
from django.test import Client
from django.utils import timezone

from conversations.accounts.devices import sign_out_devices
from conversations.features.notices import vapid, worker
from conversations.features.notices.deliveries import RETRY_SECONDS
from conversations.features.notices.models import (
    FAILED,
    PENDING,
    SENT,
    Notice,
    NoticeChoice,
    NoticeMessage,
    PushSubscription,
)
from conversations.features.notices.worker import NoticeSender, SignedOutWorker, push
from conversations.models import Session
from tests.mcp_servers.running import until
from tests.runtime.conftest import ask
from tests.waiting_calls import leave_question
from tests.web.conftest import browser_of

from .making import SITE, subscribe_browser
from .push_service import PushService, SubscribedBrowser

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def private(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Allow private addresses, because the push service runs on this machine."""
    monkeypatch.setattr(settings.LOOM, "push_private_addresses", True)
    monkeypatch.setattr(NoticeSender, "interval", 0.02)
    monkeypatch.setattr(SignedOutWorker, "interval", 0.02)


@pytest.fixture
def browser(push_service: PushService) -> SubscribedBrowser:
    return push_service.make_browser()


@pytest.fixture
def client(garden: Session) -> Client:
    return browser_of(garden.owner)


@pytest.fixture
def subscription(garden: Session, client: Client, browser: SubscribedBrowser) -> PushSubscription:
    return subscribe_browser(client, garden.owner, browser)


async def test_a_push_reveals_only_that_there_is_a_notice(
    start_runtime: Callable[..., Any],
    garden: Session,
    browser: SubscribedBrowser,
    push_service: PushService,
    subscription: PushSubscription,
) -> None:
    runtime = await start_runtime()
    await ask(runtime, garden, "Something secret")
    await until(lambda: browser.pushes)
    await sync_to_async(leave_question)(garden, line="another secret")
    await until(lambda: len(browser.pushes) == 2)
    first, second = browser.pushes
    assert first.content == second.content == b"{}"
    assert first.size == second.size
    assert first.claims["sub"] == SITE
    assert first.claims["k"] == vapid.public_key()
    assert (first.headers["urgency"], second.headers["urgency"]) == ("normal", "high")
    names = {"accept", "accept-encoding", "authorization", "content-encoding", "content-length"}
    names |= {"content-type", "host", "topic", "ttl", "urgency", "user-agent"}
    assert set(second.headers) == names


async def test_a_signed_out_device_is_woken_once_more_but_gets_no_notice(
    start_runtime: Callable[..., Any],
    garden: Session,
    client: Client,
    browser: SubscribedBrowser,
    subscription: PushSubscription,
) -> None:
    await start_runtime()
    await sync_to_async(leave_question)(garden)
    await until(lambda: len(browser.pushes) == 1)
    await sync_to_async(sign_out_devices)(garden.owner_id)
    await until(lambda: len(browser.pushes) == 2)
    response = await sync_to_async(client.get)("/account/notifications/waiting/")
    assert (response.status_code, json.loads(response.content)) == (401, {"error": "Signed out."})
    assert not await PushSubscription.objects.aexists()
    assert not await NoticeMessage.objects.aexists()


async def test_a_410_response_deletes_the_subscription(
    start_runtime: Callable[..., Any],
    garden: Session,
    push_service: PushService,
    subscription: PushSubscription,
) -> None:
    push_service.answers = [410]
    await start_runtime()
    await sync_to_async(leave_question)(garden)
    async with asyncio.timeout(60):
        while await PushSubscription.objects.aexists():
            await asyncio.sleep(0.01)
    assert await Notice.objects.acount() == 1


async def test_a_410_response_to_a_test_deletes_the_subscription(
    client: Client, push_service: PushService, subscription: PushSubscription
) -> None:
    push_service.answers = [410]
    path = f"/account/notifications/devices/{subscription.uuid}/test/"
    await sync_to_async(client.post)(path)
    assert not await PushSubscription.objects.aexists()


async def test_a_failed_push_is_retried_even_by_another_process(
    start_runtime: Callable[..., Any],
    garden: Session,
    browser: SubscribedBrowser,
    push_service: PushService,
    subscription: PushSubscription,
    caplog: pytest.LogCaptureFixture,
) -> None:
    push_service.answers = [503, 201]
    runtime = await start_runtime()
    await sync_to_async(leave_question)(garden)
    await until(lambda: fields_of(caplog, "notice_not_pushed"))
    assert fields_of(caplog, "notice_not_pushed") == {
        "status": 503,
        "reason": "The recipient responded with 503.",
        "given_up": False,
    }
    await runtime.stop()
    await NoticeMessage.objects.filter(state=PENDING).aupdate(next_at=timezone.now())
    await start_runtime()
    await until(lambda: len(browser.pushes) == 2)
    async with asyncio.timeout(60):
        while not await NoticeMessage.objects.filter(state=SENT).aexists():
            await asyncio.sleep(0.01)


async def test_pushes_to_private_addresses_are_refused(
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
    browser: SubscribedBrowser,
    subscription: PushSubscription,
) -> None:
    monkeypatch.setattr(settings.LOOM, "push_private_addresses", False)
    attempt = await push(subscription, is_urgent=True)
    assert "only the public Internet can be reached" in attempt.error
    assert browser.pushes == []


async def test_a_push_to_an_invalid_address_fails_without_an_error_page(
    start_runtime: Callable[..., Any],
    garden: Session,
    client: Client,
    subscription: PushSubscription,
) -> None:
    """One address has a host name with an invalid Punycode label, the other is no URL."""
    path = f"/account/notifications/devices/{subscription.uuid}/test/"
    await PushSubscription.objects.aupdate(endpoint="https://xn--a.invalid/")
    assert (await sync_to_async(client.post)(path)).status_code < 500
    await PushSubscription.objects.aupdate(endpoint="https://[/")
    await sync_to_async(leave_question)(garden)
    await NoticeMessage.objects.aupdate(attempts=len(RETRY_SECONDS))  # the next attempt is the last
    await start_runtime()
    async with asyncio.timeout(60):
        while not await NoticeMessage.objects.filter(state=FAILED).aexists():
            await asyncio.sleep(0.01)


def fields_of(caplog: pytest.LogCaptureFixture, event: str) -> dict[str, Any]:
    """Return the fields of the last line of an event, or none if there is no such line."""
    found = [record for record in caplog.records if record.getMessage() == event]
    return vars(found[-1])["fields"] if found else {}


@pytest.fixture
def email_message(garden: Session) -> NoticeMessage:
    """A message by e-mail, about a question, which is not due yet."""
    User.objects.filter(pk=garden.owner_id).update(email="ann@example.org")
    NoticeChoice.objects.create(user=garden.owner, by_email=True, site=SITE)
    leave_question(garden, line="a secret")
    return NoticeMessage.objects.get()


async def test_a_stop_records_an_email_that_the_mail_server_is_accepting(
    start_runtime: Callable[..., Any],
    email_message: NoticeMessage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, accepted = threading.Event(), threading.Event()

    def send(_: EmailMessage) -> int:
        begun.set()
        accepted.wait(60)
        return 1

    monkeypatch.setattr(EmailMessage, "send", send)
    await NoticeMessage.objects.aupdate(next_at=timezone.now())
    runtime = await start_runtime()
    await until(begun.is_set)
    stopping = asyncio.create_task(runtime.stop())
    await asyncio.wait({stopping}, timeout=0.2)
    accepted.set()
    await stopping
    await email_message.arefresh_from_db()
    assert email_message.state == SENT


async def test_a_stop_does_not_wait_for_a_mail_server_that_hangs(
    start_runtime: Callable[..., Any],
    email_message: NoticeMessage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def send(_: EmailMessage) -> int:
        begun.set()
        ended.wait(60)
        return 1

    monkeypatch.setattr(EmailMessage, "send", send)
    monkeypatch.setattr(worker, "EMAIL_STOP_SECONDS", 0.1)
    await NoticeMessage.objects.aupdate(next_at=timezone.now())
    runtime = await start_runtime()
    await until(begun.is_set)
    try:
        async with asyncio.timeout(30):
            await runtime.stop()
    finally:
        ended.set()
    await email_message.arefresh_from_db()
    assert email_message.state == PENDING


@pytest.mark.parametrize(
    ("error", "status", "state"),
    [
        (SMTPRecipientsRefused({"": (550, b"5.1.1 <ann@example.org>: No user")}), 550, FAILED),
        (SMTPDataError(554, b"5.7.1 No user"), 554, FAILED),
        (SMTPRecipientsRefused({"": (450, b"4.2.0 No user today")}), 450, PENDING),
        (SMTPAuthenticationError(535, b"5.7.8 No user of ours"), 535, PENDING),
        (ConnectionRefusedError("ann@example.org"), None, PENDING),
    ],
)
async def test_only_an_email_that_is_refused_for_good_is_given_up_at_once(
    start_runtime: Callable[..., Any],
    email_message: NoticeMessage,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    status: int | None,
    state: str,
) -> None:
    monkeypatch.setattr(EmailMessage, "send", Mock(side_effect=error))
    runtime = await start_runtime()
    await NoticeMessage.objects.aupdate(next_at=timezone.now())
    async with asyncio.timeout(60):
        while not (logged := fields_of(caplog, "notice_not_mailed")):
            await asyncio.sleep(0.01)
    await runtime.stop()
    await email_message.arefresh_from_db()
    assert email_message.state == state
    assert logged["given_up"] == (state == FAILED)
    assert logged.get("status") == status
    assert type(error).__name__ in logged["reason"]
    assert ("No user" in logged["reason"]) == (status is not None)
    assert "ann@example.org" not in caplog.text + str(logged)


async def test_an_unseen_notice_is_sent_by_email_after_a_delay(
    start_runtime: Callable[..., Any], garden: Session, email_message: NoticeMessage
) -> None:
    assert email_message.next_at > timezone.now() + timedelta(seconds=50)
    await NoticeMessage.objects.aupdate(next_at=timezone.now())
    await start_runtime()
    await until(lambda: mail.outbox)
    [sent] = mail.outbox
    assert sent.to == ["ann@example.org"]
    assert sent.subject == "Your approval is needed · Loom Web"
    assert f"{SITE}/s/{garden.uuid}/" in sent.body
    assert "secret" not in f"{sent.subject}{sent.body}"
    assert sent.extra_headers["Message-ID"].endswith("@loom.example.org>")
