"""The outbox: when a message is sent again, and which receiver is next."""

from datetime import UTC, datetime, timedelta

from conversations.runtime.outbox import JITTER, allot, next_attempt

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)

DELAYS = (5, 300, 7_200)


def test_delays_between_attempts_grow_and_have_jitter() -> None:
    for attempts, seconds in enumerate(DELAYS, start=1):
        found = {next_attempt(attempts, now=NOW, delays=DELAYS) for _ in range(20)}
        assert len(found) > 1
        assert all(
            at and abs((at - NOW).total_seconds() - seconds) <= JITTER * seconds for at in found
        )
    assert next_attempt(len(DELAYS) + 1, now=NOW, delays=DELAYS) is None


def test_a_receiver_can_delay_the_next_attempt_by_a_day_at_most() -> None:
    def wait(asked: timedelta) -> float:
        at = next_attempt(1, now=NOW, delays=DELAYS, asked_to_wait=asked)
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
