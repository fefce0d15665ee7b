"""Sessions that begin with messages of other programs or are read as such messages."""

import json
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from conversations.archive.message_formats import read_messages
from conversations.archive.sessions import get_session
from conversations.domain.keyset import PageCursor
from conversations.domain.text import MAX_JSON_VALUES
from conversations.models import Session
from loomweb.server import max_request_bytes
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


def test_a_session_is_read_as_messages_in_both_formats(owner: Client) -> None:
    uuid = begin(owner, messages=samples.ANTHROPIC).json()["uuid"]
    address = f"/api/v1/sessions/{uuid}/messages"
    assert owner.get(address).json()["items"] == samples.ANTHROPIC
    chat = owner.get(f"{address}?format=openai").json()["items"]
    assert [one["role"] for one in chat[:5]] == ["user", "assistant", "tool", "tool", "user"]
    found, cursor = [], ""
    while cursor is not None:
        page = owner.get(f"{address}?limit=3&cursor={cursor}").json()
        found += page["items"]
        cursor = page["next"]
    assert found == samples.ANTHROPIC
    assert owner.get(f"{address}?format=word").status_code == 422
    backwards = str(PageCursor("3", is_back=True))
    assert owner.get(f"{address}?cursor={backwards}").json()["code"] == "bad_cursor"


def test_a_body_above_the_byte_limit_is_refused(
    owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "max_api_bytes", 6_000_000)
    said = [{"role": "user", "content": "word " * 1_000_000}]
    assert begin(owner, messages=said).status_code == 201
    answer = begin(owner, messages=said * 2)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_a_body_of_very_many_values_is_refused(owner: Client) -> None:
    """The limit applies to every field, because a value takes many times its bytes in memory."""
    body = '{"text": [' + "[]," * MAX_JSON_VALUES + "0]}"
    answer = owner.post("/api/v1/workspaces", body, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert "at most 1,000,000 values" in answer.json()["detail"]


def test_a_long_history_with_code_and_images_is_accepted(owner: Client) -> None:
    """Brackets and commas in texts do not count, even if they exceed the limit of values."""
    code = 'call([1, 2], {"a": "b"}, [[], []])\n' * 20_000
    said = [
        message
        for number in range(8)
        for message in (
            {"role": "user", "content": [{"type": "text", "text": code}, samples.IMAGE]},
            {"role": "assistant", "content": f"Seen, {number}."},
        )
    ]
    assert json.dumps(said).count("[") + json.dumps(said).count(",") > MAX_JSON_VALUES
    assert begin(owner, messages=said).status_code == 201


def test_the_body_limit_of_the_server_exceeds_that_of_the_api(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings.LOOM, "max_attachments", 0)
    assert max_request_bytes() > settings.LOOM.max_api_bytes


def test_an_invalid_message_begins_no_session(owner: Client) -> None:
    answer = begin(owner, messages=[{"role": "tool", "content": "18 degrees"}])
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_message")
    assert answer.json()["detail"].startswith("messages[0]")
    assert not Session.objects.exists()
