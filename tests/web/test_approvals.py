"""Deciding on a waiting tool call: by the socket, by forms, and who may decide."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.urls import reverse

from conversations.archive.tool_calls import (
    allowed_kinds,
    grant_permission,
    list_permissions,
    read_rules,
)
from conversations.archive.workspaces import add_member
from conversations.domain.text import load_json
from conversations.models import AuditEntry, Run, Session, ToolCall, Workspace
from conversations.runtime.current import current_runtime
from tests.runtime.sample_tools import sample_tools, witness
from tests.waiting_calls import leave_question
from tests.web.conftest import async_browser_of

from .conftest import browser_of
from .sockets import Frame, Socket, open_socket

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("transactional_db", "runtime_ends", "tools"),
]


@pytest.fixture
def tools() -> Iterator[None]:
    with sample_tools():
        yield


@pytest.fixture
async def call(runtime_ends: None, tools: None, session: Session) -> ToolCall:
    return await sync_to_async(leave_question)(session)


@pytest.fixture
async def socket(call: ToolCall, session: Session, user: User) -> AsyncIterator[Socket]:
    opened = await open_socket(session, user)
    await opened.until("state", where=lambda frame: frame["run_state"] == "waiting_approval")
    yield opened
    await opened.close()


def folder(session: Session) -> Path:
    return Path(session.workspace.root)


async def ended(call: ToolCall) -> ToolCall:
    """Return the call as it is after its run has ended."""
    runtime = await current_runtime()
    await runtime.wait_idle(call.session_id)
    await call.arefresh_from_db()
    return call


async def error_after(socket: Socket, frame: Frame) -> Frame:
    await socket.send(frame)
    return await socket.until("error")


async def test_socket_approves_a_call_once(
    socket: Socket, call: ToolCall, session: Session
) -> None:
    await socket.send({"type": "approve", "call": str(call.uuid)})
    await socket.until_idle()
    assert (await ended(call)).decision == "once"
    assert witness(folder(session)) == ["beans"]
    error = await error_after(socket, {"type": "deny", "call": str(call.uuid)})
    assert error["code"] == "call_decided"
    assert "already allowed this call" in error["message"]


async def test_socket_approves_a_kind_of_call_permanently(
    socket: Socket, call: ToolCall, workspace: Workspace
) -> None:
    await socket.send({"type": "approve", "call": str(call.uuid), "always": True})
    await socket.until_idle()
    assert (await ended(call)).decision == "always"
    [permission] = await sync_to_async(list_permissions)(workspace)
    assert permission.kind == "files"


async def test_socket_denies_a_call_with_a_reason(
    socket: Socket, call: ToolCall, session: Session
) -> None:
    frame = {"type": "deny", "call": str(call.uuid)}
    error = await error_after(socket, frame | {"reason": "x" * 2001})
    assert error["code"] == "bad_reason"
    await socket.send(frame | {"reason": "Too early."})
    await socket.until_idle()
    assert ((await ended(call)).state, call.reason) == ("denied", "Too early.")
    assert witness(folder(session)) == []


async def test_socket_cancels_a_waiting_call(socket: Socket, call: ToolCall) -> None:
    await socket.send({"type": "cancel", "call": str(call.uuid)})
    await socket.until_idle()
    assert (await ended(call)).state == "stopped"


@pytest.mark.parametrize("kind", ["approve", "deny", "cancel"])
async def test_decision_on_an_unknown_call_is_an_error(socket: Socket, kind: str) -> None:
    for name, code in ((str(uuid4()), "unknown_call"), ("x", "bad_call"), (None, "bad_call")):
        assert (await error_after(socket, {"type": kind, "call": name}))["code"] == code


async def test_viewer_cannot_decide_on_a_call(
    call: ToolCall, session: Session, workspace: Workspace, other_user: User
) -> None:
    await sync_to_async(add_member)(workspace, user_pk=other_user.pk, role="viewer")
    socket = await open_socket(session, other_user)
    try:
        for kind in ("approve", "deny", "cancel"):
            error = await error_after(socket, {"type": kind, "call": str(call.uuid)})
            assert error["code"] == "not_permitted"
    finally:
        await socket.close()
    await call.arefresh_from_db()
    assert (call.decision, call.stop_requested_at) == ("", None)


def address(call: ToolCall, session: Session, action: str) -> str:
    return reverse(f"tool_call_{action}", args=[session.uuid, call.uuid])


async def test_form_approves_a_kind_of_call_permanently(
    call: ToolCall, session: Session, user: User
) -> None:
    client = await async_browser_of(user)
    response = await client.post(address(call, session, "approve"), {"always": "1"})
    assert (response.status_code, response["Location"]) == (302, f"/s/{session.uuid}/")
    assert (await ended(call)).decision == "always"
    again = await client.post(address(call, session, "deny"), {"reason": "No."})
    page = await client.get(again["Location"])
    assert "already allowed this call" in page.content.decode()


async def test_form_uses_the_reason_field_of_its_own_call(
    call: ToolCall, session: Session, user: User
) -> None:
    client = await async_browser_of(user)
    fields = {f"reason-{call.uuid}": "Not now.", f"reason-{uuid4()}": "another"}
    await client.post(address(call, session, "deny"), fields)
    assert ((await ended(call)).state, call.reason) == ("denied", "Not now.")


async def test_a_call_of_another_session_is_not_found(
    call: ToolCall, session: Session, workspace: Workspace, user: User
) -> None:
    from conversations.archive.sessions import create_session

    other = await sync_to_async(create_session)(workspace, owner=user)
    client = await async_browser_of(user)
    for action in ("approve", "deny", "cancel"):
        response = await client.post(address(call, other, action))
        assert response.status_code == 404
    assert (await Run.objects.aget(pk=call.run_id)).state == "waiting_approval"


def test_permission_for_an_obsolete_kind_no_longer_applies(session: Session, user: User) -> None:
    workspace = session.workspace
    grant_permission(workspace.pk, kind="shell:setsid", label="begin with setsid", user_pk=user.pk)
    grant_permission(workspace.pk, kind="shell:ls", label="begin with ls", user_pk=user.pk)
    assert allowed_kinds(session.pk) == {"shell:ls"}
    assert read_rules(session.pk, user_pk=user.pk).allowed == {"shell:ls"}
    assert [item.applies for item in list_permissions(workspace)] == [False, True]
    page = browser_of(user).get(reverse("workspace_tools", args=[workspace.slug]))
    assert page.content.decode().count("No longer applies: asks each time.") == 1
    # This permission does not record the description of the tool for which it was given.
    grant_permission(workspace.pk, kind="mcp:plain:touch", label="calls of touch", user_pk=user.pk)
    assert allowed_kinds(session.pk) == {"shell:ls"}


def test_tool_settings_change_the_policy_and_revoke_permissions(
    workspace: Workspace, user: User
) -> None:
    grant_permission(workspace.pk, kind="shell:ls", label="“ls” …", user_pk=user.pk)
    client = browser_of(user)
    rules = reverse("workspace_tools", args=[workspace.slug])
    page = client.get(rules).content.decode()
    assert "“ls” …" in page
    chosen = {"tool_policy": "read_only", "allows_network": "on", "channel_recall": "session"}
    client.post(rules, chosen)
    workspace.refresh_from_db()
    assert (workspace.tool_policy, workspace.allows_network) == ("read_only", True)
    assert "Unavailable: delete_file" in client.get(rules).content.decode()
    assert client.post(rules, chosen | {"tool_policy": "all of it"}).status_code == 400
    workspace.refresh_from_db()
    assert (workspace.tool_policy, workspace.allows_network) == ("read_only", True)
    [permission] = list_permissions(workspace)
    revoke = reverse("workspace_permission_revoke", args=[workspace.slug, permission.pk])
    assert client.post(revoke).status_code == 302
    assert client.post(revoke.replace(str(permission.pk), "999")).status_code == 404
    assert list_permissions(workspace) == []
    assert "“ls” …" not in client.get(rules).content.decode()


def test_change_of_channel_recall_is_recorded_in_the_audit_log(
    workspace: Workspace, user: User
) -> None:
    client, rules = browser_of(user), reverse("workspace_tools", args=[workspace.slug])
    page = client.get(rules).content.decode()
    assert '<option value="session" selected>Themselves only</option>' in page
    for choice in ("workspace", "workspace", "everything"):
        client.post(rules, {"tool_policy": "ask", "channel_recall": choice})
    workspace.refresh_from_db()
    assert workspace.channel_recall == "workspace"
    [entry] = AuditEntry.objects.all()
    assert (entry.action, entry.actor, entry.workspace) == ("recall", user, "garden")
    assert load_json(entry.metadata) == {"before": "session", "after": "workspace"}
