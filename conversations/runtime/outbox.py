"""Sending the messages of an outbox in the database over HTTP, at least once each.

A message is written in the same transaction as the change that it reports. Any process on any host
may send it. The process claims it in the database for a limited time first, so that another process
sends the message if this one dies. A feature adds its table and the code that sends a claimed
message.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, ClassVar

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
from conversations.domain.messages import Message, say

if TYPE_CHECKING:
    import aiohttp

    from .service import Runtime

# The share by which delays vary at random, so that messages that failed together are not all sent
# again at the same time.
JITTER = 0.2

MAX_RETRY_AFTER = timedelta(days=1)

# messages being sent at a time: in all, and to one receiver
MAX_SENDING, MAX_SENDING_TO_ONE = 32, 4


def next_attempt(
    attempts: int, attempt: "DeliveryAttempt", *, now: datetime, delays: Sequence[int]
) -> datetime | None:
    """Return the time of the next attempt after ``attempt``, the last of so many ``attempts``.

    Return None if the message arrived, if the refusal is final, or if there were enough attempts.
    ``delays`` are the seconds between attempts. The receiver may ask for a longer delay, up to a
    day, but not for a shorter one.
    """
    if attempt.arrived or attempt.is_final or attempts > len(delays):
        return None
    seconds = delays[attempts - 1] * random.uniform(1 - JITTER, 1 + JITTER)
    requested = min(attempt.wait or timedelta(), MAX_RETRY_AFTER)
    return now + max(timedelta(seconds=seconds), requested)


def allot[K: Hashable](
    waiting: Sequence[K], *, busy: Mapping[K, int], most: int, most_of_one: int
) -> dict[K, int]:
    """Return how many messages may be sent to each receiver now.

    ``busy`` counts the messages that are being sent to each receiver. Free places go to the
    receivers with the fewest messages being sent. A receiver that does not answer therefore delays
    the others by one attempt at most, however many messages wait for it. Ties are broken at random,
    because in a fixed order the first of many receivers would always be served again before the
    last.
    """
    allotted = Counter[K]()
    shuffled = random.sample(waiting, len(waiting))
    for level in range(most_of_one):
        for receiver in shuffled:
            if allotted.total() < most and busy.get(receiver, 0) + allotted[receiver] == level:
                allotted[receiver] += 1
    return dict(+allotted)


class OutboxWorker[M](ABC):
    """Sends due messages until it is stopped, looking for them every ``interval`` seconds."""

    interval: ClassVar[float] = 1.0

    def __init__(self, runtime: "Runtime") -> None:
        self.runtime = runtime
        self._tasks: dict[asyncio.Task[None], Hashable] = {}

    @abstractmethod
    def has_due(self, now: datetime) -> bool:
        """Return whether there is a message to claim, by a single index lookup."""

    @abstractmethod
    def claim_due(self, now: datetime, *, busy: Mapping[Hashable, int], most: int) -> Iterable[M]:
        """Claim up to ``most`` messages. ``busy`` counts those being sent to each receiver."""

    @abstractmethod
    def receiver_of(self, message: M) -> Hashable: ...

    @abstractmethod
    async def attempt(self, message: M) -> "DeliveryAttempt":
        """Send a claimed message once."""

    @abstractmethod
    async def complete(self, message: M, attempt: "DeliveryAttempt") -> None:
        """Record the result of an attempt."""

    @abstractmethod
    def log_exception(self, error: Exception) -> None:
        """Log an error that occurred while a message was sent or its result was recorded."""

    async def send(self, message: M) -> None:
        """Send a claimed message and record the result. Log errors instead of raising them."""
        try:
            attempt = await self.attempt(message)
        except Exception as error:  # must be recorded, or the message would be sent for ever
            self.log_exception(error)
            text = f"The message could not be sent ({type(error).__name__})."
            attempt = DeliveryAttempt(arrived=False, error=text)
        try:
            await self.complete(message, attempt)
        except Exception as error:
            self.log_exception(error)

    async def run(self) -> None:
        try:
            while True:
                if await self.begin_due():
                    # Continue as soon as one has ended, because more messages may wait for its
                    # receiver.
                    await asyncio.wait(
                        self._tasks, timeout=self.interval, return_when=asyncio.FIRST_COMPLETED
                    )
                else:
                    await asyncio.sleep(self.interval)
        finally:
            for task in self._tasks:
                task.cancel()  # it is sent again when the claim expires
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def begin_due(self) -> int:
        """Start sending due messages, as far as there is room, and return their number."""
        now = timezone.now()
        room = MAX_SENDING - len(self._tasks)
        if room <= 0 or not await self.runtime.readers.read(self.has_due, now):
            return 0
        claimed = await self.runtime.writer.write(
            self.claim_due, now, busy=Counter(self._tasks.values()), most=room
        )
        count = 0
        for message in claimed:
            task = asyncio.create_task(self.send(message))
            self._tasks[task] = self.receiver_of(message)
            task.add_done_callback(self._tasks.pop)
            count += 1
        return count


# One request.


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryAttempt:
    """The result of an attempt to send a message.

    ``status`` is None if there was no response. ``is_final`` means that the receiver refused for
    good, so that another attempt would be useless. ``wait`` is the delay that the receiver asked
    for.
    """

    arrived: bool
    status: int | None = None
    error: str = ""
    is_final: bool = False
    wait: timedelta | None = None


def allowed_addresses(*, private: bool) -> Allows:
    """Return a test for the addresses that messages may go to. ``private`` allows all of them."""
    return (lambda _: True) if private else is_public


def check_receiver_url(text: str, *, what: str, private: bool) -> str:
    """Return the URL of a receiver as a person entered it, normalised.

    Raise Rejected with a sentence about ``what`` if it cannot be used. The address that its host
    name resolves to is checked whenever a message is sent.
    """
    # Checked first, because ``read_url`` would ask for http:// or https://.
    if not private and not text.strip().lower().startswith("https://"):
        raise Rejected("%(what)s must begin with https://.", what=what, code="bad_url")
    url = read_url(text.strip())
    if len(str(url)) > MAX_URL_CHARS:  # characters outside ASCII take more space when encoded
        raise Rejected(
            "The URL has more than %(limit)s characters.", limit=MAX_URL_CHARS, code="bad_url"
        )
    if private:
        return str(url)
    if is_private_host(url.raw_host or ""):
        raise Rejected("%(host)s is not on the public Internet.", host=url.host, code="bad_url")
    return str(url)


async def post_once(
    address: str, *, body: bytes, headers: Mapping[str, str], allows: Allows, seconds: float
) -> DeliveryAttempt:
    """Send a message once. A response with a status of 2xx is a success; its body is not read.

    Redirects are not followed, because nobody has allowed the new address to get the message.
    """
    import aiohttp  # takes a third of a second

    from conversations.agent.tools.web_client import explain, open_client

    # Unchanged, because a push service identifies the receiver by this URL.
    url = URL(address, encoded=True)
    try:
        async with (
            asyncio.timeout(seconds),
            open_client(allows, headers=headers) as client,
            client.post(url, data=body, allow_redirects=False) as response,
        ):
            return _read_answer(response)
    except TimeoutError:
        error = say(
            "%(host)s did not respond within %(seconds)s seconds.",
            host=url.raw_host,
            seconds=f"{seconds:g}",
        )
        return DeliveryAttempt(arrived=False, error=error)
    except (aiohttp.ClientError, OSError, ValueError) as failure:
        return DeliveryAttempt(arrived=False, error=explain(failure, url))


GONE = 410  # the status of a receiver that does not exist any more


def _read_answer(response: "aiohttp.ClientResponse") -> DeliveryAttempt:
    status = response.status
    if 200 <= status < 300:
        return DeliveryAttempt(arrived=True, status=status)
    wait = None
    if status != GONE and not 300 <= status < 400:
        wait = _read_wait(response.headers.get("Retry-After", ""))
    return DeliveryAttempt(
        arrived=False,
        status=status,
        error=describe_status(status),
        is_final=status == GONE,
        wait=wait,
    )


def describe_status(status: int) -> Message:
    """Return a sentence about a response that is not a success."""
    if 300 <= status < 400:
        return say(
            "The recipient redirects (%(status)s). Redirects are not followed.", status=status
        )
    if status == GONE:
        return say("The recipient accepts no more messages (410).")
    return say("The recipient responded with %(status)s.", status=status)


def _read_wait(text: str) -> timedelta | None:
    if text.isascii() and text.isdigit() and len(text) < 9:
        return timedelta(seconds=int(text))
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # OverflowError for a time zone that is out of range
        return None
    return until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)
