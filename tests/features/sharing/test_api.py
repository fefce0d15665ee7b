"""Share links through the API: making, listing, opening and revoking them."""

from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from conversations.features.sharing.models import ShareLink
from conversations.models import Session
from tests.api.conftest import caller_of
from tests.api.test_sessions import address_of
from tests.web.conftest import say

pytestmark = pytest.mark.django_db


@pytest.fixture
def program(user: User, session: Session, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(settings.LOOM, "share_links", True)
    say(session, "Plant the beans", "In May")
    return caller_of(user)


def make(program: Client, session: Session, **wish: Any) -> Any:
    address = address_of(session, "/share-links")
    return program.post(address, wish, content_type="application/json")


def test_a_link_is_made_opened_and_revoked(
    program: Client, session: Session, client: Client
) -> None:
    answer = make(program, session)
    assert answer.status_code == 201, answer.content
    link = answer.json()
    assert (link["from_turn"], link["to_turn"], link["with_tools"]) == (1, 2, False)
    assert "Plant the beans" in client.get(link["url"]).text
    [listed] = program.get(address_of(session, "/share-links")).json()["items"]
    assert listed["opened_count"] == 1
    assert listed | {"opened_count": 0, "last_opened_at": None} == link
    address = address_of(session, f"/share-links/{link['uuid']}")
    assert [program.delete(address).status_code for _ in range(2)] == [204, 204]
    assert client.get(link["url"]).status_code == 404
    assert program.get(address_of(session, "/share-links")).json()["items"] == []


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        ({"to_turn": 3}, "bad_range"),
        ({"from_turn": 2, "to_turn": 1}, "bad_range"),
        ({"days": 10_000}, "bad_days"),
        ({"days": 0}, "invalid"),
    ],
)
def test_a_link_with_an_invalid_range_or_lifetime_is_refused(
    program: Client, session: Session, wish: dict[str, int], code: str
) -> None:
    assert make(program, session, **wish).json()["code"] == code
    assert not ShareLink.objects.exists()


def test_links_can_be_revoked_while_sharing_is_switched_off(
    program: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = make(program, session).json()["uuid"]
    monkeypatch.setattr(settings.LOOM, "share_links", False)
    assert make(program, session).status_code == 404
    assert program.get(address_of(session, "/share-links")).status_code == 404
    assert program.delete(address_of(session, f"/share-links/{link}")).status_code == 204
