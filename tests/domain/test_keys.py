"""Keys: which ones there are, and what they say."""

import pytest

from conversations.domain.errors import Rejected
from conversations.domain.session_keys import channel_of, check_key, path_of


@pytest.mark.parametrize(
    ("key", "channel", "path"),
    [
        ("cli:default", "cli", "default"),
        ("discord:thread:42", "discord", "thread:42"),
        ("bead:ac-c0f.2", "bead", "ac-c0f.2"),
        ("my_bot-2:été 山", "my_bot-2", "été 山"),
    ],
)
def test_a_key_names_its_channel(key: str, channel: str, path: str) -> None:
    assert check_key(key) == key
    assert (channel_of(key, otherwise="api"), path_of(key)) == (channel, path)


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
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(Rejected) as refused:
        check_key(key)
    assert refused.value.code == "key_invalid"


def test_a_key_of_an_older_program_has_the_channel_of_its_caller() -> None:
    assert channel_of("default", otherwise="cli") == "cli"
