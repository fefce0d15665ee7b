"""The page of the session state: its items, and the changes that a member may make."""

import re
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from conversations.archive.session_state import edit_state, read_state_view
from conversations.models import ChatEvent, Session

from .conftest import MakePerson, browser_of, say

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}


def address(session: Session) -> str:
    return reverse("session_state", args=[session.uuid])


def decision_of(session: Session) -> str:
    return next(i.id for i in read_state_view(session.pk).items if i.kind == "decision")


async def change(browser: AsyncClient, session: Session, *, htmx: bool, **data: str) -> Any:
    data = {"item": await sync_to_async(decision_of)(session), **data}
    where = reverse("session_state_edit", args=[session.uuid])
    return await browser.post(where, data, headers=HTMX if htmx else {})


@pytest.fixture
def decided(session: Session) -> Session:
    say(session, "We use tabs", "Understood")
    return session


def test_empty_state_explains_what_it_will_contain(owner: Client, session: Session) -> None:
    page = owner.get(address(session))
    assert "Nothing yet. Rules, preferences, decisions" in page.text
    assert "<form" not in page.text.partition("panel-part")[2]


def test_each_item_links_to_its_turn(owner: Client, decided: Session) -> None:
    page = owner.get(address(decided)).text
    assert f'href="/s/{decided.uuid}/t/1/"' in page
    assert re.findall(r"<h3[^>]*>([^<]+)", page) == ["Focus", "Decisions"]


def test_htmx_gets_only_the_part_for_the_panel(owner: Client, decided: Session) -> None:
    part = owner.get(address(decided), headers=HTMX)
    assert "<html" not in part.text
    assert "We use tabs" in part.text
    assert "HX-Request" in part["Vary"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("htmx", [False, True], ids=["plain", "htmx"])
async def test_a_form_changes_an_item(
    async_browser: AsyncClient, decided: Session, htmx: bool
) -> None:
    wording = {"action": "edit", "text": "We use two spaces"}
    response = await change(async_browser, decided, htmx=htmx, **wording)
    if htmx:
        assert (response.status_code, 'data-said="Saved"' in response.text) == (200, True)
    else:
        assert (response.status_code, response["Location"]) == (302, address(decided))
    assert (await change(async_browser, decided, htmx=htmx, action="pin")).status_code in (200, 302)
    view = await sync_to_async(read_state_view)(decided.pk)
    [item] = [item for item in view.items if item.kind == "decision"]
    assert (item.text, item.original, item.is_pinned) == ("We use two spaces", "We use tabs", True)
    page = (await async_browser.get(address(decided))).text
    assert "Originally: We use tabs" in page
    assert 'value="unpin"' in page


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("data", "status", "reason"),
    [
        ({"action": "edit", "text": " "}, 400, "The text must have at least one character."),
        ({"action": "edit", "text": "x" * 161}, 413, "at most 160 characters"),
        ({"action": "burn"}, 400, "Choose an action."),
        ({"action": "pin", "item": "d999"}, 400, "no longer in the session state"),
        ({"action": "pin", "item": "\0"}, 400, "no longer in the session state"),
    ],
)
async def test_invalid_change_is_refused_and_its_text_stays_in_the_form(
    async_browser: AsyncClient, decided: Session, data: dict[str, str], status: int, reason: str
) -> None:
    response = await change(async_browser, decided, htmx=True, **data)
    assert response.status_code == status
    assert reason in response.text
    assert data.get("text", "") in response.text
    assert not await ChatEvent.objects.filter(session=decided.pk, event_type="info").aexists()


def test_a_viewer_sees_no_button(make_person: MakePerson, decided: Session) -> None:
    page = browser_of(make_person("viewer")).get(address(decided)).text
    assert "We use tabs" in page
    assert "/state/edit/" not in page


def test_the_number_of_queries_does_not_depend_on_the_items(
    owner: Client, session: Session
) -> None:
    costs = []
    for texts in (["We use tabs", "Yes"], [f"We decided to plant row {n}" for n in range(20)]):
        say(session, *texts)
        owner.get(address(session))
        with CaptureQueriesContext(connection) as queries:
            assert owner.get(address(session)).status_code == 200
        costs.append(len(queries))
    assert costs[0] == costs[1]


def test_struck_item_is_listed_apart_and_can_be_restored(
    owner: Client, decided: Session, user: User
) -> None:
    edit_state(decided, actor_pk=user.pk, action="strike", item=decision_of(decided))
    page = owner.get(address(decided)).text
    apart = page.partition('id="struck"')[2]
    assert "We use tabs" in apart
    assert "removed by a person" in apart
    assert 'value="unstrike"' in apart
