"""Signatures according to the Standard Webhooks specification."""

import base64
from datetime import UTC, datetime

from conversations.features.webhooks.worker import sign

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_the_signature_matches_the_published_example() -> None:
    """The libraries of Standard Webhooks are tested with the same example."""
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


def test_each_key_adds_a_signature() -> None:
    one, two = (
        sign([key], message_id="m", at=NOW, body=b"x")["webhook-signature"] for key in (b"a", b"b")
    )
    both = sign([b"a", b"b"], message_id="m", at=NOW, body=b"x")["webhook-signature"]
    assert both == f"{one} {two}"
