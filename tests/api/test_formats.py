"""Sessions begun with messages of other programs, and read as such."""

from typing import Any

import pytest
from django.test import Client

from conversations.archive.export_messages import read_messages
from conversations.archive.sessions import get_session
from conversations.models import Session
from tests.domain.formats import samples

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("workspace")]

OF_GARDEN = "/api/v1/workspaces/garden/sessions"


def begin(owner: Client, **values: Any) -> Any:
    return owner.post(OF_GARDEN, values, content_type="application/json")


@pytest.mark.parametrize(
    ("name", "messages"), [("anthropic", samples.ANTHROPIC), ("openai", samples.OPENAI)]
)
def test_a_session_begins_with_messages(owner: Client, name: str, messages: list[Any]) -> None:
    answer = begin(owner, messages=messages, format=name, key="bead:ac-1")
    assert answer.status_code == 201, answer.content
    session = get_session(answer.json()["uuid"])
    assert read_messages(session, format=name, limit=99).messages == messages
    again = begin(owner, messages=messages, format=name, key="bead:ac-1")
    assert (again.status_code, again.json()["code"]) == (409, "key_taken")


def test_nothing_begins_with_what_is_no_message(owner: Client) -> None:
    answer = begin(owner, messages=[{"role": "tool", "content": "18 degrees"}])
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_message")
    assert answer.json()["detail"].startswith("messages[0]")
    assert not Session.objects.exists()
