"""Turns and events by the API: paging in both directions, contents and branches."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from conversations.archive.append import NewEvent, append
from conversations.archive.branches import use_branch
from conversations.archive.messages import rewind_session
from conversations.archive.sessions import get_session
from conversations.archive.verify import verify_session
from conversations.domain.errors import Rejected
from conversations.domain.events import Info, ToolCallStarted
from conversations.domain.text import dump_json
from conversations.domain.turns import NewTurn
from conversations.models import ChatEvent, Session, Turn
from tests.web.conftest import say

from .test_sessions import address_of

pytestmark = pytest.mark.django_db


def items(client: Client, session: Session, query: str) -> list[dict[str, Any]]:
    answer = client.get(address_of(session, f"/{query}"))
    assert answer.status_code == 200, answer.content
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


def numbers(client: Client, session: Session, query: str) -> list[int]:
    return [one.get("number") or one["seq"] for one in items(client, session, query)]


def test_turns_and_events_are_paged_by_number_both_ways(session: Session, owner: Client) -> None:
    say(session, *(f"line {number}" for number in range(1, 8)))
    for kind in ("turns", "events"):
        assert numbers(owner, session, kind) == [1, 2, 3, 4, 5, 6, 7]
        assert numbers(owner, session, f"{kind}?limit=2") == [1, 2]
        assert numbers(owner, session, f"{kind}?after=3&limit=2") == [4, 5]
        assert numbers(owner, session, f"{kind}?before=4&limit=2") == [2, 3]
        assert numbers(owner, session, f"{kind}?after=0") == [1, 2, 3, 4, 5, 6, 7]
        both = owner.get(address_of(session, f"/{kind}?before=4&after=1"))
        assert both.json()["code"] == "bad_cursor"


@pytest.mark.parametrize("kind", ["turns", "events"])
def test_cursors_lead_through_all_pages(session: Session, owner: Client, kind: str) -> None:
    say(session, *(f"line {number}" for number in range(1, 8)))
    page = owner.get(address_of(session, f"/{kind}?limit=3")).json()
    walked = [page]
    while page["next"]:
        page = owner.get(address_of(session, f"/{kind}?limit=3&cursor={page['next']}")).json()
        walked.append(page)
    assert [len(one["items"]) for one in walked] == [3, 3, 1]
    back = owner.get(address_of(session, f"/{kind}?limit=3&cursor={page['previous']}")).json()
    assert back["items"] == walked[1]["items"]


def test_a_turn_has_its_blocks_and_its_calls(session: Session, owner: Client) -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm", "signature": "s"},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"path": "a\ud800b"}},
    ]
    older = [{"id": "c2", "function": {"name": "dig", "arguments": '{"n": 1}'}}]
    append(
        session.pk,
        session_uuid=session.uuid,
        turns=[
            NewTurn(role="assistant", content="", blocks=dump_json(blocks)),
            NewTurn(role="tool", content="soil", tool_call_id="c1", tool_name="look"),
            NewTurn(role="assistant", content="", tool_calls=dump_json(older)),
        ],
    )
    first, second, third = items(owner, session, "turns")
    assert first["blocks"] == blocks
    assert first["tool_calls"] == [{"id": "c1", "name": "look", "input": {"path": "a\ud800b"}}]
    assert (second["content"], second["tool_call_id"], second["tool_name"]) == (
        "soil",
        "c1",
        "look",
    )
    assert third["tool_calls"] == [{"id": "c2", "name": "dig", "input": {"n": 1}}]
    one = owner.get(address_of(session, "/turns/3"))
    assert one.json() == third


def test_an_unknown_turn_is_answered_with_404(session: Session, owner: Client) -> None:
    say(session, "Plant the beans")
    for number in ("0", "9", "9" * 18, "9" * 40):
        assert owner.get(address_of(session, f"/turns/{number}")).status_code == 404, number


def test_a_damaged_turn_names_its_damage(session: Session, owner: Client) -> None:
    append(
        session.pk,
        session_uuid=session.uuid,
        turns=[NewTurn(role="assistant", content="Beans", blocks="{broken", metadata="[")],
    )
    [turn] = items(owner, session, "turns")
    assert (turn["content"], turn["blocks"], turn["metadata"]) == ("Beans", None, {})
    assert "not JSON" in turn["damage"]


def test_turns_off_the_active_path_are_marked_and_can_be_filtered(
    session: Session, owner: Client
) -> None:
    say(session, "one", "two", "three", "four")
    rewind_session(session, from_turn=3, actor_pk=None)
    say(session, "five")
    assert [one["active"] for one in items(owner, session, "turns")] == [
        *(True, True, False, False, True)
    ]
    assert numbers(owner, session, "turns?active=true") == [1, 2, 5]
    assert numbers(owner, session, "turns?active=false") == [3, 4]
    assert numbers(owner, session, "turns?active=true&before=5&limit=1") == [2]
    assert [one["active"] for one in items(owner, session, "events")] == [
        *(True, True, False, False, True)
    ]


def test_an_abandoned_branch_can_be_used_again(session: Session, owner: Client) -> None:
    say(session, "one", "two", "three", "four")
    rewind_session(session, from_turn=3, actor_pk=None)
    say(session, "five")
    branches = f"/api/v1/sessions/{session.uuid}/branches"
    [left] = owner.get(branches).json()["items"]
    assert (left["turn"], left["tip"], left["turns"], left["begins"]) == (3, 4, 2, "three")
    use_branch(get_session(session.uuid), turn=4, actor_pk=None)
    assert numbers(owner, session, "turns?active=true") == [1, 2, 3, 4]
    assert [one["active"] for one in items(owner, session, "events")] == [True] * 4 + [False]
    [left] = owner.get(branches).json()["items"]
    assert (left["turn"], left["reason"]) == (5, "switch")
    with pytest.raises(Rejected, match="on no other branch"):
        use_branch(get_session(session.uuid), turn=4, actor_pk=None)
    assert verify_session(get_session(session.uuid)).problem == ""


def test_events_have_their_stored_payload(session: Session, owner: Client) -> None:
    say(session, "Plant the beans")
    append(
        session.pk,
        session_uuid=session.uuid,
        events=[
            NewEvent(payload=ToolCallStarted(call_id="c1", name="look", arguments={"a": 1})),
            NewEvent(payload=Info(text="Stopped", code="stopped")),
        ],
    )
    said, started, info = items(owner, session, "events")
    assert said["payload"] == {"v": 1, "text": "Plant the beans"}
    assert (started["event_type"], started["payload"]["arguments"]) == (
        "tool_call_started",
        {"a": 1},
    )
    assert (info["payload"]["text"], info["turn"], info["fallback"]) == ("Stopped", 1, None)


def test_an_unreadable_event_has_a_fallback(session: Session, owner: Client) -> None:
    ChatEvent.objects.create(
        session=session,
        seq=1,
        event_type="hologram",
        payload="{",
        created_at=session.created_at,
        digest="",
    )
    [event] = items(owner, session, "events")
    assert (event["event_type"], event["payload"]) == ("hologram", None)
    assert "hologram" in event["fallback"]["reason"]
    assert event["fallback"]["raw"] == "{"


@pytest.mark.parametrize("kind", ["turns", "events"])
def test_query_count_is_independent_of_the_number_of_turns(
    session: Session, owner: Client, kind: str
) -> None:
    say(session, "one", "two")
    owner.get(address_of(session))
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as queries:
            assert len(items(owner, session, f"{kind}?limit=40")) > 1
        counts.append(len(queries))
        say(session, *(str(number) for number in range(60)))
    assert counts[0] == counts[1] <= 5
    assert Turn.objects.count() > 100
