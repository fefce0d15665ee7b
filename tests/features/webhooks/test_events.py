"""Signatures as the specification has them, and when a message is sent again."""

import base64
from datetime import UTC, datetime, timedelta

from conversations.features.webhooks.deliveries import (
    JITTER,
    MAX_ATTEMPTS,
    RETRY_SECONDS,
    allot,
    next_attempt,
)
from conversations.features.webhooks.worker import sign

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_the_signature_is_the_published_one() -> None:
    """The example that the libraries of Standard Webhooks are tested with."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = sign(
        [key],
        message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        at=datetime.fromtimestamp(1614265330, tz=UTC),
        body=b'{"test": 2432232314}',
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_each_key_signs() -> None:
    one, two = (
        sign([key], message_id="m", at=NOW, body=b"x")["webhook-signature"] for key in (b"a", b"b")
    )
    both = sign([b"a", b"b"], message_id="m", at=NOW, body=b"x")["webhook-signature"]
    assert both == f"{one} {two}"


def test_the_next_attempt_is_ever_later_and_not_always_at_the_same_moment() -> None:
    for attempts, seconds in enumerate(RETRY_SECONDS, start=1):
        found = {next_attempt(attempts, now=NOW) for _ in range(20)}
        assert len(found) > 1
        assert all(
            at and abs((at - NOW).total_seconds() - seconds) <= JITTER * seconds for at in found
        )
    assert next_attempt(MAX_ATTEMPTS, now=NOW) is None


def test_a_receiver_may_ask_for_more_time_for_a_day_at_most() -> None:
    def wait(asked: timedelta) -> float:
        at = next_attempt(1, now=NOW, asked_to_wait=asked)
        assert at is not None
        return (at - NOW).total_seconds()

    assert wait(timedelta(hours=1)) == 3600
    assert wait(timedelta(days=9)) == 86400
    assert wait(timedelta(days=-1)) < 10


def test_who_has_fewest_on_the_way_is_next() -> None:
    def given(most: int, **busy: int) -> dict[int, int]:
        known = {int(name[1:]): count for name, count in busy.items()}
        return allot([1, 2, 3], busy=known, most=most, most_of_one=4)

    assert given(12) == {1: 4, 2: 4, 3: 4}
    assert given(4) == {1: 2, 2: 1, 3: 1}
    assert given(1, w1=3, w2=3) == {3: 1}
    assert given(3, w1=4, w2=1) == {3: 2, 2: 1}
    assert given(9, w1=4, w2=4, w3=4) == {}
    assert given(0) == {}
