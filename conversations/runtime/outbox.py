"""Sending over HTTP what an outbox in the database holds, at least once.

A message is written in the transaction of what it tells of. Any process may send it, on any
host: it is claimed in the database for a while first, so that another process sends it should
this one die. What a feature adds is its table, and how a claimed message is sent.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
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

# The share by which a delay differs: what failed together is not repeated together.
JITTER = 0.2

MAX_RETRY_AFTER = timedelta(days=1)

MAX_SENDING, MAX_SENDING_TO_ONE = 32, 4  # messages on their way at a time, in all and to one


def next_attempt(
    attempts: int,
    *,
    now: datetime,
    delays: Sequence[int],
    asked_to_wait: timedelta | None = None,
) -> datetime | None:
    """When to try again after so many attempts, with ``delays`` in seconds between them; None:
    not any more. The receiver may ask for more time than there would be, not for less, and for
    a day at most."""
    if attempts > len(delays):
        return None
    seconds = delays[attempts - 1] * random.uniform(1 - JITTER, 1 + JITTER)
    asked = min(asked_to_wait or timedelta(), MAX_RETRY_AFTER)
    return now + max(timedelta(seconds=seconds), asked)


def allot[K: Hashable](
    waiting: Sequence[K], *, busy: Mapping[K, int], most: int, most_of_one: int
) -> dict[K, int]:
    """How many messages for each of the receivers may set out, ``busy`` of which are on
    their way: one goes to who has fewest, and so on, so that a receiver that does not
    answer, with however many waiting, holds up no other for longer than one attempt. Of
    equals chance decides: in a fixed order, the first of many would always be served again
    before the last."""
    given = Counter[K]()
    shuffled = random.sample(waiting, len(waiting))
    for level in range(most_of_one):
        for receiver in shuffled:
            if given.total() < most and busy.get(receiver, 0) + given[receiver] == level:
                given[receiver] += 1
    return dict(+given)


class OutboxWorker[M](ABC):
    """Sends what is due until it is stopped. ``interval``: seconds between two looks for it."""

    interval: ClassVar[float] = 1.0

    def __init__(self, runtime: "Runtime") -> None:
        self.runtime = runtime
        self._tasks: dict[asyncio.Task[None], Hashable] = {}

    @abstractmethod
    def has_due(self, now: datetime) -> bool:
        """Whether to claim anything: one look into an index."""

    @abstractmethod
    def claim_due(self, now: datetime, *, busy: Mapping[Hashable, int], most: int) -> Iterable[M]:
        """Claim up to ``most`` messages; ``busy``: how many for each receiver are being sent."""

    @abstractmethod
    def receiver_of(self, message: M) -> Hashable: ...

    @abstractmethod
    async def attempt(self, message: M) -> "DeliveryAttempt":
        """Send a claimed message once."""

    @abstractmethod
    async def complete(self, message: M, attempt: "DeliveryAttempt") -> None:
        """Record how that went."""

    @abstractmethod
    def log_exception(self, error: Exception) -> None:
        """Log why one could not be sent, or that not be recorded."""

    async def send(self, message: M) -> None:
        """Send a claimed message and record how that went. Raises nothing."""
        try:
            attempt = await self.attempt(message)
        except Exception as error:  # recorded like others, or it would be repeated for ever
            self.log_exception(error)
            told = f"The message could not be sent ({type(error).__name__})."
            attempt = DeliveryAttempt(arrived=False, error=told)
        try:
            await self.complete(message, attempt)
        except Exception as error:
            self.log_exception(error)

    async def run(self) -> None:
        try:
            while True:
                if await self.begin_due():
                    # As soon as one has ended: there may be more for its receiver.
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
    """How an attempt went. ``status`` is None where there was no answer; ``is_gone``: the
    receiver wants no more messages; ``wait`` is how long it asked to be left alone."""

    arrived: bool
    status: int | None = None
    error: str = ""
    is_gone: bool = False
    wait: timedelta | None = None


def allowed_addresses(*, private: bool) -> Allows:
    """Which addresses messages may go to; ``private``: any, as the installation has it."""
    return (lambda _: True) if private else is_public


def check_receiver_url(text: str, *, what: str, private: bool) -> str:
    """The address of a receiver, for who enters it. Raises Rejected with a sentence about
    ``what``. Where its name leads is looked at whenever something is sent."""
    url = read_url(text.strip())
    if len(str(url)) > MAX_URL_CHARS:  # what is no ASCII has become longer
        raise Rejected(
            "The URL has more than %(limit)s characters.", limit=MAX_URL_CHARS, code="bad_url"
        )
    if private:
        return str(url)
    if url.scheme != "https":
        raise Rejected("%(what)s must begin with https://.", what=what, code="bad_url")
    if is_private_host(url.raw_host or ""):
        raise Rejected("%(host)s is not on the public Internet.", host=url.host, code="bad_url")
    return str(url)


async def post_once(
    address: str, *, body: bytes, headers: Mapping[str, str], allows: Allows, seconds: float
) -> DeliveryAttempt:
    """Send a message once. An answer counts when its status is 2xx; its body is not read. A
    redirect is not followed, since nobody has said that what stands there may know."""
    import aiohttp  # its client takes a third of a second to load

    from conversations.agent.tools.web_client import explain, open_client

    # As it was given out: a push service finds the receiver by it.
    url = URL(address, encoded=True)
    try:
        async with (
            asyncio.timeout(seconds),
            open_client(allows, headers=headers) as client,
            client.post(url, data=body, allow_redirects=False) as response,
        ):
            return _read_answer(response)
    except TimeoutError:
        return DeliveryAttempt(
            arrived=False, error=f"{url.raw_host} did not respond within {seconds:g} seconds."
        )
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return DeliveryAttempt(arrived=False, error=explain(error, url))


GONE = 410  # the status of a receiver that is no more


def _read_answer(response: "aiohttp.ClientResponse") -> DeliveryAttempt:
    status = response.status
    failed = partial(DeliveryAttempt, arrived=False, status=status)
    if 200 <= status < 300:
        return DeliveryAttempt(arrived=True, status=status)
    told = describe_status(status)
    if status == GONE or 300 <= status < 400:
        return failed(error=told, is_gone=status == GONE)
    wait = _read_wait(response.headers.get("Retry-After", ""))
    return failed(error=told, wait=wait)


def describe_status(status: int) -> Message:
    """What an answer says that is no success."""
    if 300 <= status < 400:
        return say(
            "The receiver redirects (%(status)s); redirects are not followed.", status=status
        )
    if status == GONE:
        return say("The receiver wants no more messages (410).")
    return say("The receiver responded with %(status)s.", status=status)


def _read_wait(text: str) -> timedelta | None:
    if text.isascii() and text.isdigit() and len(text) < 9:
        return timedelta(seconds=int(text))
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # the latter of a zone beyond all hours
        return None
    return until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)
