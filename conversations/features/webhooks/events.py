"""What webhooks tell, and how: events, signatures, when to try again.

A message is signed as the Standard Webhooks specification has it
(https://www.standardwebhooks.com), version 1 of which is HMAC-SHA256 with a shared secret.
"""

import base64
import hashlib
import hmac
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from conversations.domain import runs

RUN_COMPLETED, RUN_FAILED = "run.completed", "run.failed"
RUN_STOPPED, RUN_INTERRUPTED = "run.stopped", "run.interrupted"
WAITING_APPROVAL = "run.waiting_approval"
TEST = "webhook.test"

EVENTS = {
    RUN_COMPLETED: "a run has completed",
    RUN_FAILED: "a run has failed",
    RUN_STOPPED: "a run was stopped",
    RUN_INTERRUPTED: "a run was interrupted: its process is gone",
    WAITING_APPROVAL: "a run waits for a person’s approval",
}
"""What a webhook can be told of → what happened. Beside these there is :data:`TEST`."""

EVENT_OF_STATE = {
    runs.COMPLETED: RUN_COMPLETED,
    runs.FAILED: RUN_FAILED,
    runs.STOPPED: RUN_STOPPED,
    runs.INTERRUPTED: RUN_INTERRUPTED,
}

PENDING, DELIVERED, FAILED = "pending", "delivered", "failed"
DELIVERY_STATES = (PENDING, DELIVERED, FAILED)

RETRY_SECONDS = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""How long after each attempt the next one is: those that the specification suggests."""

MAX_ATTEMPTS = len(RETRY_SECONDS) + 1

JITTER = 0.2
"""The share by which a delay differs, so that what failed together is not repeated
together."""

MAX_RETRY_AFTER = timedelta(days=1)

OVERLAP = timedelta(hours=24)
"""How long after a rotation the secrets before it still sign."""

SECRET_PREFIX = "whsec_"  # noqa: S105 (what secrets begin with)


def show_secret(key: bytes) -> str:
    """A secret as it is given to the receiver."""
    return SECRET_PREFIX + base64.b64encode(key).decode()


def sign(keys: Iterable[bytes], *, message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """The headers of a message, with a signature by each of the keys."""
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


def next_attempt(
    attempts: int, *, now: datetime, asked_to_wait: timedelta | None = None
) -> datetime | None:
    """When to try again after so many attempts; None: not any more. The receiver may ask
    for more time than there would be, not for less, and for a day at most."""
    if attempts >= MAX_ATTEMPTS:
        return None
    seconds = RETRY_SECONDS[attempts - 1] * random.uniform(1 - JITTER, 1 + JITTER)
    asked = min(asked_to_wait or timedelta(), MAX_RETRY_AFTER)
    return now + max(timedelta(seconds=seconds), asked)


def allot(
    waiting: Sequence[int], *, busy: Mapping[int, int], most: int, most_of_one: int
) -> dict[int, int]:
    """How many messages of each of the webhooks may set out, ``busy`` of which are on
    their way: one goes to who has fewest, and so on, so that a webhook that does not
    answer, with however many waiting, holds up no other for longer than one attempt."""
    given = Counter[int]()
    for level in range(most_of_one):
        for webhook in waiting:
            if given.total() < most and busy.get(webhook, 0) + given[webhook] == level:
                given[webhook] += 1
    return dict(+given)
