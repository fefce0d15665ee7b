"""Sending the messages in the outbox of webhooks (``features.webhooks.deliveries``)."""

import base64
import hashlib
import hmac
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from conversations.agent.tools.web_client import Allows
from conversations.domain.messages import say
from conversations.runtime import outbox
from conversations.runtime.outbox import DeliveryAttempt, OutboxWorker, post_once

from .deliveries import claim_due, complete_delivery, has_due
from .models import Delivery
from .service import signing_keys

logger = logging.getLogger(__name__)

ATTEMPT_TIMEOUT_SECONDS = 15.0  # less than a claim holds (deliveries.LEASE)

USER_AGENT = "Loom-Web (webhooks)"


class WebhookSender(OutboxWorker[Delivery]):
    has_due = staticmethod(has_due)

    def claim_due(self, now: datetime, *, busy: Mapping[Any, int], most: int) -> list[Delivery]:
        most_of_one = outbox.MAX_SENDING_TO_ONE
        return claim_due(now, busy=busy, most=most, most_of_one=most_of_one)

    def receiver_of(self, message: Delivery) -> int:
        return message.webhook_id

    async def attempt(self, message: Delivery) -> DeliveryAttempt:
        return await attempt_delivery(message, allows=allowed_addresses())

    def log_exception(self, error: Exception) -> None:
        logger.error("webhook_not_delivered", exc_info=error)

    async def complete(self, message: Delivery, attempt: DeliveryAttempt) -> None:
        is_turned_off = await self.runtime.writer.write(
            complete_delivery,
            message,
            attempt,
            now=timezone.now(),
            off_after=timedelta(days=settings.LOOM.webhook_off_days),
        )
        if is_turned_off:
            fields = {"webhook": str(message.webhook.uuid), "reason": attempt.error}
            logger.warning("webhook_turned_off", extra={"fields": fields})


def allowed_addresses() -> Allows:
    """Return which addresses the installation allows for webhooks."""
    return outbox.allowed_addresses(private=settings.LOOM.webhook_private_addresses)


def check_webhook_url(text: str) -> str:
    """Return the checked address of a new or changed webhook. Raise Rejected if it is invalid."""
    private = settings.LOOM.webhook_private_addresses
    return outbox.check_receiver_url(text, what=say("A webhook's URL"), private=private)


def sign(keys: Iterable[bytes], *, message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """Return the headers of a message, with a signature by each of the keys.

    The headers follow the Standard Webhooks specification (https://www.standardwebhooks.com). The
    signatures are HMAC-SHA256, which is version 1 of the specification.
    """
    timestamp = str(int(at.timestamp()))
    signed = f"{message_id}.{timestamp}.".encode() + body
    signatures = (hmac.new(key, signed, hashlib.sha256).digest() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(
            f"v1,{base64.b64encode(signature).decode()}" for signature in signatures
        ),
    }


async def attempt_delivery(delivery: Delivery, *, allows: Allows) -> DeliveryAttempt:
    """Send a message once."""
    body, now = delivery.payload.encode(), timezone.now()
    headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT}
    keys = signing_keys(delivery.webhook, now=now)
    headers |= sign(keys, message_id=str(delivery.uuid), at=now, body=body)
    return await post_once(
        delivery.webhook.url,
        body=body,
        headers=headers,
        allows=allows,
        seconds=ATTEMPT_TIMEOUT_SECONDS,
    )
