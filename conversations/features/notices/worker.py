"""Sending notices: to browsers by a push service, and by e-mail.

A push has no content. The browser that gets one asks the server for its notices, as the person
who is signed in there. So a push service learns only the time of a notice.
"""

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from smtplib import SMTPDataError, SMTPRecipientsRefused, SMTPResponseException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.mail import EmailMessage
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext, override

from conversations.accounts.people import read_preferences
from conversations.domain.messages import say
from conversations.domain.text import one_line
from conversations.rendering.messages import translate
from conversations.runtime import outbox
from conversations.runtime.outbox import DeliveryAttempt, OutboxWorker, post_once

from . import vapid
from .deliveries import claim_due, complete_message, has_due
from .models import ASKS, BROKEN, FAILED, FINISHED, Notice, NoticeMessage, PushSubscription
from .service import list_ended, read_choice, remove_subscription

if TYPE_CHECKING:
    from conversations.runtime.service import Runtime

logger = logging.getLogger(__name__)

ATTEMPT_TIMEOUT_SECONDS = 10.0  # less than a claim holds (deliveries.LEASE)

# How long a stop waits for the mail server, so that an e-mail that it accepts is not sent again.
EMAIL_STOP_SECONDS = 10.0

USER_AGENT = "Loom-Web (notices)"

GONE = (404, 410)  # a push service's status for a subscription that has ended

ADDRESS = re.compile(r"[^\s<>]+@[^\s<>]+")  # mail servers repeat the person's address
MAX_ANSWER_CHARS = 200  # of a mail server's text, in the log

TTL_SECONDS = 86_400

# A push replaces an earlier one that still waits at the push service. That loses no notice,
# because the browser asks for all its notices.
TOPIC = "notices"


class NoticeSender(OutboxWorker[NoticeMessage]):
    interval = 0.5
    has_due = staticmethod(has_due)

    def claim_due(
        self, now: datetime, *, busy: Mapping[Any, int], most: int
    ) -> list[NoticeMessage]:
        return claim_due(now, busy=busy, most=most, most_of_one=outbox.MAX_SENDING_TO_ONE)

    def receiver_of(self, message: NoticeMessage) -> int | None:
        return message.subscription_id

    async def send(self, message: NoticeMessage) -> None:
        if message.subscription is not None:
            await super().send(message)
            return
        sending = asyncio.create_task(super().send(message))
        try:
            await asyncio.shield(sending)
        finally:
            # On a stop, the thread that talks to the mail server goes on: record what it answers.
            # A mailbox would show it twice.
            await asyncio.wait({sending}, timeout=EMAIL_STOP_SECONDS)
            sending.cancel()

    async def attempt(self, message: NoticeMessage) -> DeliveryAttempt:
        if message.subscription is None:
            return await send_email(self.runtime, message.notice)
        is_urgent = message.notice.event == ASKS
        return await push(message.subscription, is_urgent=is_urgent)

    def log_exception(self, error: Exception) -> None:
        logger.error("notice_not_sent", exc_info=error)

    async def complete(self, message: NoticeMessage, attempt: DeliveryAttempt) -> None:
        if message.subscription is not None and attempt.is_final:
            await self.runtime.writer.write(remove_subscription, message.subscription.pk)
            return
        state = await self.runtime.writer.write(
            complete_message, message, attempt, now=timezone.now()
        )
        if not attempt.arrived:
            fields: dict[str, Any] = {"reason": str(attempt.error), "given_up": state == FAILED}
            if attempt.status is not None:
                fields["status"] = attempt.status
            if message.subscription is None:
                logger.warning("notice_not_mailed", extra={"fields": fields})
            else:
                logger.warning("notice_not_pushed", extra={"fields": fields})


async def push(subscription: PushSubscription, *, is_urgent: bool) -> DeliveryAttempt:
    """Send an empty push, which wakes the browser.

    A refusal is final if the subscription has ended.
    """
    headers = {
        "Authorization": vapid.authorization(subscription.endpoint, site=subscription.site),
        "Content-Encoding": "aes128gcm",
        "Content-Type": "application/octet-stream",
        "TTL": str(TTL_SECONDS),
        "Topic": TOPIC,
        "Urgency": "high" if is_urgent else "normal",
        "User-Agent": USER_AGENT,
    }
    body = vapid.encrypt(p256dh=subscription.p256dh, auth=subscription.auth)
    allows = outbox.allowed_addresses(private=settings.LOOM.push_private_addresses)
    attempt = await post_once(
        subscription.endpoint,
        body=body,
        headers=headers,
        allows=allows,
        seconds=ATTEMPT_TIMEOUT_SECONDS,
    )
    return replace(attempt, is_final=attempt.status in GONE)


SUBJECTS = {
    FINISHED: say("An answer is complete"),
    BROKEN: say("An answer has failed"),
    ASKS: say("Your approval is needed"),
}


async def send_email(runtime: "Runtime", notice: Notice) -> DeliveryAttempt:
    choice = await runtime.readers.read(read_choice, notice.user_id)
    preferences = await runtime.readers.read(read_preferences, notice.user_id)
    # The language that the person's browser asks for is not known here.
    with override(preferences.page_language or settings.LANGUAGE_CODE):
        email = write_email(notice, site=choice.site)
    try:
        await asyncio.to_thread(email.send)
    except (OSError, ValueError) as error:  # ValueError: the e-mail address is invalid
        return _read_refusal(error)
    return DeliveryAttempt(arrived=True)


def _read_refusal(error: Exception) -> DeliveryAttempt:
    """Return the attempt that ended with this error, with the mail server's code and text."""
    told: bytes | str
    match error:
        case SMTPRecipientsRefused():
            [(status, told)] = error.recipients.values()
        case SMTPResponseException():
            status, told = error.smtp_code, error.smtp_error
        case _:  # the text of other errors may contain the address
            return DeliveryAttempt(arrived=False, error=type(error).__name__)
    text = told if isinstance(told, str) else told.decode(errors="replace")
    said = one_line(ADDRESS.sub("…", text), limit=MAX_ANSWER_CHARS)
    # Refusals of the sign-in or the sender concern the settings, which may be mended meanwhile.
    is_of_email = isinstance(error, SMTPRecipientsRefused | SMTPDataError)
    return DeliveryAttempt(
        arrived=False,
        status=status,
        error=f"{type(error).__name__}: {said}",
        is_final=is_of_email and status >= 500,
    )


def write_email(notice: Notice, *, site: str) -> EmailMessage:
    """Return the e-mail of a notice.

    The e-mail contains no text of the session, because others may be able to read it.
    """
    host = urlsplit(site).hostname or "localhost"
    subject = translate(SUBJECTS[notice.event])
    session = f"{site}{reverse('session', args=[notice.session.uuid])}"
    own = gettext("Change your notification settings: %(url)s") % {
        "url": f"{site}{reverse('notifications')}"
    }
    return EmailMessage(
        f"{subject} · Loom Web",
        f"{subject}:\n{session}\n\n{own}\n",
        from_email=settings.DEFAULT_FROM_EMAIL,
        to=[notice.user.email],
        # The ID is the same for each attempt, so that mailboxes can recognise duplicates.
        headers={"Message-ID": f"<{notice.uuid}@{host}>", "Auto-Submitted": "auto-generated"},
    )


class SignedOutWorker:
    """A worker that ends the subscriptions of devices that were signed out by any process.

    It wakes their browsers a last time. They find that nobody is signed in, and close the notices
    that they show.
    """

    interval = 1.0

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime

    async def run(self) -> None:
        while True:
            for subscription in await self._runtime.readers.read(list_ended):
                await self._runtime.writer.write(remove_subscription, subscription.pk)
                # In the background, so that a slow push service does not delay the others.
                self._runtime.database.run_in_background(_wake(subscription))
            await asyncio.sleep(self.interval)


async def _wake(subscription: PushSubscription) -> None:
    await push(subscription, is_urgent=True)
