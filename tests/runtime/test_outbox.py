"""The outbox: when a message is sent again, and which receiver is next."""

import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
from django.utils.translation import override
from yarl import URL

from conversations.agent.tools.web_client import PrivateAddress, explain
from conversations.domain.errors import Rejected
from conversations.domain.messages import say
from conversations.rendering.messages import translate
from conversations.runtime.outbox import (
    JITTER,
    DeliveryAttempt,
    allot,
    check_receiver_url,
    next_attempt,
    post_once,
)

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)

DELAYS = (5, 300, 7_200)

FAILED = DeliveryAttempt(arrived=False)


def test_delays_between_attempts_grow_and_have_jitter() -> None:
    for attempts, seconds in enumerate(DELAYS, start=1):
        found = {next_attempt(attempts, FAILED, now=NOW, delays=DELAYS) for _ in range(20)}
        assert len(found) > 1
        assert all(
            at and abs((at - NOW).total_seconds() - seconds) <= JITTER * seconds for at in found
        )
    assert next_attempt(len(DELAYS) + 1, FAILED, now=NOW, delays=DELAYS) is None


@pytest.mark.parametrize("end", [{"arrived": True}, {"is_final": True}])
def test_no_attempt_follows_a_success_or_a_final_refusal(end: dict[str, bool]) -> None:
    assert next_attempt(1, replace(FAILED, **end), now=NOW, delays=DELAYS) is None


def test_a_receiver_can_delay_the_next_attempt_by_a_day_at_most() -> None:
    def wait(asked: timedelta) -> float:
        at = next_attempt(1, replace(FAILED, wait=asked), now=NOW, delays=DELAYS)
        assert at is not None
        return (at - NOW).total_seconds()

    assert wait(timedelta(hours=1)) == 3600
    assert wait(timedelta(days=9)) == 86400
    assert wait(timedelta(days=-1)) < 10


def test_the_receiver_with_the_fewest_messages_in_flight_is_next() -> None:
    def given(most: int, **busy: int) -> dict[int, int]:
        known = {int(name[1:]): count for name, count in busy.items()}
        return allot([1, 2, 3], busy=known, most=most, most_of_one=4)

    assert given(12) == {1: 4, 2: 4, 3: 4}
    assert sorted(given(4).values()) == [1, 1, 2]
    assert given(1, w1=3, w2=3) == {3: 1}
    assert given(3, w1=4, w2=1) == {3: 2, 2: 1}
    assert given(9, w1=4, w2=4, w3=4) == {}
    assert given(0) == {}


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("example.org/hook", "Die URL eines Webhooks muss mit https:// beginnen."),
        ("http://example.org", "Die URL eines Webhooks muss mit https:// beginnen."),
        ("https://", "Eine URL muss mit http:// oder https:// beginnen und einen Host nennen."),
        ("https://a:b@example.org", "Eine URL darf weder Benutzernamen noch Passwort enthalten."),
        (f"https://{'ä' * 70}.org", "Das ist keine gültige URL."),
        ("https://[/", "Das ist keine gültige URL."),
    ],
)
def test_the_reason_against_a_url_is_true_and_translated(url: str, told: str) -> None:
    with pytest.raises(Rejected) as refused, override("de"):
        check_receiver_url(url, what=say("A webhook's URL"), private=False)
    with override("de"):
        assert translate(refused.value.message) == told


async def test_why_a_receiver_could_not_be_reached_is_translated() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        attempt = await post_once(
            address, body=b"", headers={}, allows=lambda _: True, seconds=0.05
        )
    url = URL("https://example.org")
    key = aiohttp.client_reqrep.ConnectionKey("example.org", 443, True, True, None, None, None)
    causes: list[Exception] = [
        PrivateAddress(),
        aiohttp.InvalidURL(url),
        aiohttp.ClientConnectorDNSError(key, OSError()),
        aiohttp.ClientConnectorSSLError(key, OSError()),
        aiohttp.ClientConnectorError(key, OSError()),
        aiohttp.ServerDisconnectedError(),
    ]
    for said in (attempt.error, *(explain(cause, url) for cause in causes)):
        with override("de"):
            assert translate(said) != said
