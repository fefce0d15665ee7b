"""Delivering what the outbox of webhooks holds (``features.webhooks.deliveries``).

Any process may do it, on any host: a message is claimed in the database first. An answer
counts when its status is 2xx; its body is not read. A redirect is not followed, since
nobody has said that what stands there may know.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING

from django.conf import settings
from django.utils import timezone
from yarl import URL

from conversations.agent.tools.web_client import (
    MAX_URL_CHARS,
    Allows,
    is_private_host,
    is_public,
    read_url,
)
from conversations.domain.errors import Rejected

from .deliveries import DeliveryAttempt, claim_due, complete_delivery, has_due
from .models import Delivery
from .service import signing_keys

if TYPE_CHECKING:
    import aiohttp

    from conversations.runtime.service import Runtime

logger = logging.getLogger(__name__)

SECONDS = 15.0  # an attempt takes at most: less than a claim holds (deliveries.LEASE)

MOST, MOST_OF_ONE = 32, 4  # messages on their way at a time, all in all and to one webhook

USER_AGENT = "Loom-Web (webhooks)"

GONE = 410


class WebhookSender:
    interval = 1.0  # seconds between two looks for what is due

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._tasks: dict[asyncio.Task[None], int] = {}

    async def run(self) -> None:
        """Deliver for ever what is due; to be run as a task."""
        try:
            while True:
                if await self.begin_due():
                    # As soon as one has ended: there may be more of its webhook.
                    await asyncio.wait(
                        self._tasks, timeout=self.interval, return_when=asyncio.FIRST_COMPLETED
                    )
                else:
                    await asyncio.sleep(self.interval)
        finally:
            for task in self._tasks:
                task.cancel()  # somebody does it again when the claim is over
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def begin_due(self) -> int:
        """Set out with what is due, as far as there is room; returns with how many."""
        now = timezone.now()
        if len(self._tasks) >= MOST or not await self._runtime.readers.read(has_due, now):
            return 0
        claimed = await self._runtime.writer.write(
            claim_due,
            now,
            busy=Counter(self._tasks.values()),
            most=MOST - len(self._tasks),
            most_of_one=MOST_OF_ONE,
        )
        for delivery in claimed:
            task = asyncio.create_task(self._deliver(delivery))
            self._tasks[task] = delivery.webhook_id
            task.add_done_callback(self._tasks.pop)
        return len(claimed)

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            attempt = await attempt_delivery(delivery, allows=allowed_addresses())
            is_turned_off = await self._runtime.writer.write(
                complete_delivery,
                delivery,
                attempt,
                now=timezone.now(),
                off_after=timedelta(days=settings.LOOM.webhook_off_days),
            )
        except Exception:
            logger.exception("webhook_not_delivered")
            return
        if is_turned_off:
            fields = {"webhook": str(delivery.webhook.uuid), "reason": attempt.error}
            logger.warning("webhook_turned_off", extra={"fields": fields})


def allowed_addresses() -> Allows:
    """Which addresses webhooks may lead to, as the installation has it."""
    return (lambda _: True) if settings.LOOM.webhook_private_addresses else is_public


def check_webhook_url(text: str) -> str:
    """The address of a webhook, for who makes one. Raises Rejected with a sentence. Where
    its name leads is looked at whenever something is sent."""
    url = read_url(text.strip())
    if len(str(url)) > MAX_URL_CHARS:  # what is no ASCII has become longer
        raise Rejected(f"The URL has more than {MAX_URL_CHARS} characters.", code="bad_url")
    if settings.LOOM.webhook_private_addresses:
        return str(url)
    if url.scheme != "https":
        raise Rejected("A webhook's URL must begin with https://.", code="bad_url")
    if is_private_host(url.raw_host or ""):
        raise Rejected(f"{url.host} is not on the public Internet.", code="bad_url")
    return str(url)


def sign(keys: Iterable[bytes], *, message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """The headers of a message, with a signature by each of the keys, as the Standard Webhooks
    specification has it (https://www.standardwebhooks.com): HMAC-SHA256 in its version 1."""
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
    import aiohttp  # its client takes a third of a second to load

    from conversations.agent.tools.web_client import explain, open_client

    url, body, now = URL(delivery.webhook.url), delivery.payload.encode(), timezone.now()
    headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT}
    keys = signing_keys(delivery.webhook, now=now)
    headers |= sign(keys, message_id=str(delivery.uuid), at=now, body=body)
    try:
        async with (
            asyncio.timeout(SECONDS),
            open_client(allows, headers=headers) as client,
            client.post(url, data=body, allow_redirects=False) as response,
        ):
            return _read_answer(response)
    except TimeoutError:
        return DeliveryAttempt(
            arrived=False, error=f"{url.host} did not respond within {SECONDS:g} seconds."
        )
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return DeliveryAttempt(arrived=False, error=explain(error, url))


def _read_answer(response: "aiohttp.ClientResponse") -> DeliveryAttempt:
    status = response.status
    failed = partial(DeliveryAttempt, arrived=False, status=status)
    if 200 <= status < 300:
        return DeliveryAttempt(arrived=True, status=status)
    if status == GONE:
        return failed(error="The receiver wants no more messages (410).", is_gone=True)
    if 300 <= status < 400:
        return failed(error=f"The receiver redirects ({status}); redirects are not followed.")
    wait = _read_wait(response.headers.get("Retry-After", ""))
    return failed(error=f"The receiver responded with {status}.", wait=wait)


def _read_wait(text: str) -> timedelta | None:
    if text.isascii() and text.isdigit() and len(text) < 9:
        return timedelta(seconds=int(text))
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # the latter of a zone beyond all hours
        return None
    return until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)
