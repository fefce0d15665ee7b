"""The rules for people who may talk to the bot, and for places."""

import pytest

from conversations.features.discord.options import (
    BadRules,
    DiscordRules,
    MessageLocation,
    read_ids,
    read_people,
)

ANN, BOB = 1, 2
DM = MessageLocation(channel=10)
CHANNEL = MessageLocation(channel=20, guild=5)
THREAD = MessageLocation(channel=30, guild=5, parent=20)
ELSEWHERE = MessageLocation(channel=40, guild=6)


def test_the_default_rules_admit_no_messages() -> None:
    rules = DiscordRules()
    assert not any(rules.admits(ANN, spot) for spot in (DM, CHANNEL, THREAD))


def test_listed_people_may_write_directly_and_in_open_places() -> None:
    rules = DiscordRules(channels=frozenset({20}), people={ANN: "ann"})
    assert [rules.admits(ANN, spot) for spot in (DM, CHANNEL, THREAD, ELSEWHERE)] == [
        True,
        True,
        True,
        False,
    ]
    assert not any(rules.admits(BOB, spot) for spot in (DM, CHANNEL, THREAD, ELSEWHERE))
    assert (rules.account_of(ANN), rules.account_of(BOB)) == ("ann", "")


def test_the_everybody_rule_does_not_cover_direct_messages() -> None:
    rules = DiscordRules(guilds=frozenset({5}), everybody=True)
    assert rules.admits(BOB, THREAD)
    assert not rules.admits(BOB, DM)
    assert not rules.admits(BOB, ELSEWHERE)


def test_each_place_has_a_session_key() -> None:
    assert [spot.key(author=ANN) for spot in (DM, CHANNEL, THREAD)] == [
        "discord:dm:1",
        "discord:channel:20",
        "discord:thread:30",
    ]


def test_ids_must_be_positive_numbers() -> None:
    assert read_people(["1=ann", " 2 ", "*"]) == ({1: "ann", 2: ""}, True)
    assert read_ids(["3", "4"]) == {3, 4}
    for bad in ("ann", "", "-1", "0", "9" * 30, "①"):
        with pytest.raises(BadRules):
            read_ids([bad])
