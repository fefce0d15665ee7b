"""What a command says to its caller by its exit code."""

import pytest
from django.core.management import CommandError, call_command

pytestmark = pytest.mark.django_db

UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("check_mcp", "--workspace", "nope"), "workspace does not exist"),
        (("create_token", "nobody", "--name", "x"), "account “nobody” does not exist"),
        (("prune_blobs", "--days", "1"), "--days must be at least 2"),
        (("recall", UNKNOWN, "beans"), "session"),
        (("send", "--session", UNKNOWN, "hello"), "session does not exist"),
        (("send", "--workspace", "nope", "hello"), "workspace does not exist"),
        (("sign_in_link", "nobody"), "account “nobody” does not exist"),
        (("sign_in_link", "--address", "chat.example.org"), "--address must begin with https"),
    ],
)
def test_what_cannot_be_asked_for_is_invalid_usage(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(CommandError, match=said) as refused:
        call_command(*arguments)
    assert refused.value.returncode == 2
