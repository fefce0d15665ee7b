"""Conversations of work items: begun, read, reset, purged and replaced when they expire."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.http import StreamingHttpResponse
from django.test import AsyncClient, Client
from django.utils import timezone

from conversations.archive.audit import AuditOrigin
from conversations.archive.purge import PurgeRequest, purge
from conversations.archive.sessions import create_session, get_session
from conversations.archive.turns import walk_active_turns
from conversations.archive.verify import verify_session
from conversations.archive.workspaces import create_workspace
from conversations.domain.errors import Conflict
from conversations.domain.turns import NewTurn, StoredTurn
from conversations.models import Session, Workspace
from tests.archive.turns import append_turn, read_turns
from tests.web.conftest import runtime_ends, say  # noqa: F401 (a fixture)

from .conftest import caller_of, token_of

API = "/api/v1"
BEAD = f"{API}/beads/ac-c0f.2/conversation"

type Json = dict[str, Any]


@pytest.fixture
def other_workspace(workspace: Workspace, user: User, tmp_path: Path) -> Workspace:
    root = tmp_path / "orchard"
    root.mkdir()
    return create_workspace(root=root, name="Orchard", slug="orchard", owner=user)


def open_bead(caller: Client, workspace: Workspace, **more: Any) -> Json:
    body = {"project_id": workspace.slug, **more}
    answer = caller.put(BEAD, body, content_type="application/json")
    assert answer.status_code in (200, 201), answer.content
    return dict(answer.json())


def whole(caller: Client, address: str) -> Json:
    answer = caller.get(address)
    assert isinstance(answer, StreamingHttpResponse)
    return dict(json.loads(async_to_sync(read_all)(answer)))


async def read_all(answer: StreamingHttpResponse) -> bytes:
    return b"".join([piece async for piece in answer])


def reset_of(session_id: object) -> str:
    return f"{API}/conversations/{session_id}/reset"


@pytest.mark.django_db
def test_a_purge_during_the_response_breaks_it_off(
    session: Session, owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(session, "Investigate", "It leaks.")

    def walk(session_pk: int) -> Iterator[StoredTurn]:
        yield from walk_active_turns(session_pk)
        purge(
            session, order=PurgeRequest(reason="Tidying"), origin=AuditOrigin(), now=timezone.now()
        )

    monkeypatch.setattr("conversations.api.conversations.walk_active_turns", walk)
    with pytest.raises(Conflict, match="permanently deleted"):
        whole(owner, f"{API}/conversations/{session.uuid}")


@pytest.mark.django_db
def test_a_work_item_has_one_conversation(workspace: Workspace, owner: Client) -> None:
    assert owner.get(BEAD).status_code == 404
    made = open_bead(
        owner, workspace, system_message="You debug orders.", metadata={"agent_id": "a-7"}
    )
    assert (made["bead_id"], made["project_id"]) == ("ac-c0f.2", workspace.slug)
    assert open_bead(owner, workspace, system_message="Other")["session_id"] == made["session_id"]
    session = get_session(made["session_id"])
    assert (session.key, session.channel) == ("bead:ac-c0f.2", "bead")
    say(session, "Investigate", "It leaks.")
    found = whole(owner, BEAD)
    assert [(m["number"], m["role"], m["content"]) for m in found["messages"]] == [
        (0, "system", "You debug orders."),
        (1, "user", "Investigate"),
        (2, "assistant", "It leaks."),
    ]
    assert found["metadata"] == {"agent_id": "a-7"}
    assert found["token_count"] == 0
    assert whole(owner, f"{API}/conversations/{made['session_id']}") == found


@pytest.mark.django_db
def test_instructions_stored_as_a_turn_are_listed_once(workspace: Workspace, owner: Client) -> None:
    history = [("system", "You look after a garden."), ("user", "Which?"), ("assistant", "Those.")]
    begun = {
        "format": "openai",
        "messages": [{"role": role, "content": content} for role, content in history],
    }
    address = f"{API}/workspaces/{workspace.slug}/sessions"
    made = owner.post(address, begun, content_type="application/json").json()
    assert made["instructions"] == "You look after a garden."
    found = whole(owner, f"{API}/conversations/{made['uuid']}")
    assert [(m["role"], m["content"]) for m in found["messages"]] == history
    assert [m["number"] for m in found["messages"]] == [1, 2, 3]
    assert found["message_count"] == 3


@pytest.mark.django_db
def test_tool_calls_and_results_are_messages_with_their_ids(
    session: Session, owner: Client
) -> None:
    call = '[{"id": "c1", "name": "list_files", "input": {"path": "."}}]'
    append_turn(session, NewTurn(role="assistant", content="", tool_calls=call))
    append_turn(
        session,
        NewTurn(role="tool", content="a.txt", tool_call_id="c1", tool_name="list_files"),
    )
    append_turn(session, NewTurn(role="assistant", content="x", tool_calls="{broken"))
    asked, answered, broken = whole(owner, f"{API}/conversations/{session.uuid}")["messages"]
    assert asked["tool_calls"] == [{"id": "c1", "name": "list_files", "input": {"path": "."}}]
    assert (answered["tool_call_id"], answered["tool_name"]) == ("c1", "list_files")
    assert broken["tool_calls"] is None


@pytest.mark.django_db
def test_an_expired_conversation_is_replaced_and_linked(
    workspace: Workspace, owner: Client
) -> None:
    first = open_bead(
        owner, workspace, expires_at=(timezone.now() + timedelta(hours=1)).isoformat()
    )
    Session.objects.update(expires_at=timezone.now())
    assert owner.get(BEAD).status_code == 404
    second = open_bead(owner, workspace)
    assert second["session_id"] != first["session_id"]
    assert second["continues"] == first["session_id"]
    old = whole(owner, f"{API}/conversations/{first['session_id']}")
    assert (old["expired"], old["bead_id"]) == (True, "ac-c0f.2")


@pytest.mark.django_db
def test_two_projects_may_have_the_same_work_item(
    workspace: Workspace, other_workspace: Workspace, owner: Client
) -> None:
    open_bead(owner, workspace)
    open_bead(owner, other_workspace)
    answer = owner.get(BEAD)
    assert (answer.status_code, answer.json()["code"]) == (409, "ambiguous")
    found = whole(owner, f"{BEAD}?project={other_workspace.slug}")
    assert found["project_id"] == other_workspace.slug


@pytest.mark.django_db
def test_a_stranger_cannot_find_the_conversations_of_others(
    workspace: Workspace, owner: Client
) -> None:
    open_bead(owner, workspace)
    stranger = caller_of(User.objects.create_user("stranger"))
    assert stranger.get(f"{BEAD}?project={workspace.slug}").status_code == 404
    assert stranger.get(f"{API}/conversations").json()["conversations"] == []


@pytest.mark.django_db
def test_conversations_are_listed_by_project(
    workspace: Workspace, other_workspace: Workspace, owner: Client
) -> None:
    for number in range(3):
        body = {"project_id": workspace.slug}
        address = f"{API}/beads/item-{number}/conversation"
        owner.put(address, body, content_type="application/json")
    open_bead(owner, other_workspace)
    assert len(owner.get(f"{API}/conversations").json()["conversations"]) == 4
    first = owner.get(f"{API}/conversations?limit=2&project={workspace.slug}").json()
    rest = owner.get(
        f"{API}/conversations?limit=2&project={workspace.slug}&cursor={first['next']}"
    ).json()
    found = [one["bead_id"] for one in first["conversations"] + rest["conversations"]]
    assert found == ["item-2", "item-1", "item-0"]
    assert rest["next"] is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime_ends")
async def test_a_reset_rewinds_to_the_start_and_deletes_no_turn(
    workspace: Workspace, user: User
) -> None:
    session = await sync_to_async(create_session)(workspace, owner=user, instructions="Debug.")
    caller = AsyncClient()
    headers = {"Authorization": f"Bearer {await sync_to_async(token_of)(user)}"}

    async def reset(body: Json | None, *said: str) -> list[str]:
        await sync_to_async(say)(session, *said)
        answer = await caller.post(
            reset_of(session.uuid),
            "" if body is None else body,
            content_type="application/json",
            headers=headers,
        )
        assert answer.status_code == 200, answer.content
        left = await caller.get(f"{API}/conversations/{session.uuid}", headers=headers)
        conversation = json.loads(await read_all(left))
        turns = [one["content"] for one in conversation["messages"] if one["number"]]
        assert conversation["message_count"] == answer.json()["message_count"] == len(turns)
        return [one["content"] for one in conversation["messages"]]

    assert await reset(None, "Investigate", "It leaks.") == ["Debug."]
    assert await reset({"keep_system_message": True}, "And now?") == ["Debug."]
    assert await reset({"keep_system_message": False}, "Again") == []
    assert len(await sync_to_async(read_turns)(session.pk)) == 4
    found = await sync_to_async(get_session)(session.uuid)
    assert found.rewind_count == 3
    assert not (await sync_to_async(verify_session)(found)).problem
    assert await reset({"keep_system_message": False}) == []
    assert (await sync_to_async(get_session)(session.uuid)).rewind_count == 3


@pytest.mark.django_db
def test_an_invalid_work_item_key_is_refused(workspace: Workspace, owner: Client) -> None:
    body = {"project_id": workspace.slug}
    answer = owner.put(f"{API}/beads/a%20/conversation", body, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (400, "key_invalid")


@pytest.mark.django_db
def test_a_project_with_a_nul_or_half_a_surrogate_pair_is_refused(
    workspace: Workspace, owner: Client
) -> None:
    for odd, status in (("\ud800", 422), ("a\0b", 404)):
        body = json.dumps({"project_id": odd})
        answer = owner.put(BEAD, body, content_type="application/json")
        assert answer.status_code == status
