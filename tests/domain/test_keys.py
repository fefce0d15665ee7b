"""Keys of sessions: valid forms and their channels."""

import pytest

from conversations.domain.errors import Rejected
from conversations.domain.session_keys import channel_of, check_key


@pytest.mark.parametrize(
    ("key", "channel"),
    [
        ("cli:default", "cli"),
        ("discord:thread:42", "discord"),
        ("bead:ac-c0f.2", "bead"),
        ("my_bot-2:été 山", "my_bot-2"),
    ],
)
def test_a_key_names_its_channel(key: str, channel: str) -> None:
    assert check_key(key) == key
    assert channel_of(key, otherwise="api") == channel


@pytest.mark.parametrize(
    "key",
    [
        "",
        "default",
        ":x",
        "cli:",
        "cli: x",
        "cli:x ",
        "Cli:x",
        "c i:x",
        "cli:a\nb",
        "cli:\0",
        "a:\ud800",
        "cli:" + "x" * 252,
        "-c:x",
        "c" * 33 + ":x",
    ],
)
def test_an_invalid_key_is_refused(key: str) -> None:
    with pytest.raises(Rejected) as refused:
        check_key(key)
    assert refused.value.code == "key_invalid"


def test_a_key_without_a_channel_has_the_channel_of_its_caller() -> None:
    assert channel_of("default", otherwise="cli") == "cli"
