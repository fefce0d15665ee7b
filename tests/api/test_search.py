"""Search and recall by the API, with the same results as the pages and the command."""

import json
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from conversations.archive.messages import rewind_session
from conversations.archive.sessions import create_session
from conversations.models import Session, Workspace
from tests.web.conftest import say

from .conftest import caller_of
from .test_sessions import address_of

pytestmark = pytest.mark.django_db

SEARCH = "/api/v1/search"


def found(client: Client, query: str) -> Any:
    answer = client.get(f"{SEARCH}?{query}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_a_search_finds_turns_of_readable_sessions_only(
    workspace: Workspace, session: Session, user: User, owner: Client, other_user: User
) -> None:
    say(session, "Plant the beans", "In May")
    say(create_session(workspace, owner=user, title="Herbs"), "Beans like savory", "Yes")
    answer = found(owner, "q=beans")
    assert {one["snippet"] for one in answer["items"]} == {"Plant the beans", "Beans like savory"}
    assert {one["title"] for one in answer["items"]} == {"Plant the beans", "Herbs"}
    assert (answer["total"], answer["total_is_bound"]) == (2, False)
    assert found(owner, "q=beans&workspace=garden")["total"] == 2
    assert found(owner, "q=beans+role:assistant")["total"] == 0
    assert found(owner, "q=nothing")["missing"] == ["nothing"]
    stranger = caller_of(other_user)
    assert found(stranger, "q=beans")["items"] == []
    assert stranger.get(f"{SEARCH}?q=beans&workspace=garden").status_code == 404


def test_hits_are_paged_to_the_end(session: Session, owner: Client) -> None:
    say(session, *(f"beans {number}" for number in range(7)))
    turns, page = [], found(owner, "q=beans&order=newest&limit=3")
    while True:
        turns += [one["turn"] for one in page["items"]]
        if page["next"] is None:
            break
        page = found(owner, f"q=beans&order=newest&limit=3&cursor={page['next']}")
    assert turns == [7, 6, 5, 4, 3, 2, 1]


def test_hits_off_the_active_path_are_marked(session: Session, owner: Client) -> None:
    say(session, "Plant the beans", "In May", "More beans", "Now")
    rewind_session(session, from_turn=3, actor_pk=None)
    hits = found(owner, "q=beans")["items"]
    assert {one["turn"]: one["active"] for one in hits} == {1: True, 3: False}


def test_an_invalid_search_is_refused(workspace: Workspace, owner: Client) -> None:
    for query in ("", "q=", "q=%00", f"q={'x' * 1001}", "q=x&order=worst"):
        assert owner.get(f"{SEARCH}?{query}").status_code == 422, query


def test_recall_returns_what_the_command_prints(session: Session, owner: Client) -> None:
    say(session, "Plant the beans", "In May", "And the peas?", "In March")
    for query in ("beans", '"the beans"', "beans role:user", "peas -", "?*("):
        out = StringIO()
        call_command("recall", str(session.uuid), query, json=True, stdout=out)
        answer = owner.get(address_of(session, "/recall"), {"q": query})
        assert answer.status_code == 200, answer.content
        assert answer.json() == json.loads(out.getvalue()), query
