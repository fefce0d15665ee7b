"""Session state, changed files and summaries by the API."""

from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.test import Client

from conversations.agent.undo.apply import WriteAction
from conversations.archive.session_state import read_state_view
from conversations.models import Session
from tests.archive.test_compactions import compact, in_force
from tests.changes.conftest import Calls
from tests.web.conftest import say
from tests.web.test_changes import change

from .conftest import Program


def address(session: Session, part: str) -> str:
    return f"/api/v1/sessions/{session.uuid}/{part}"


async def post(program: Program, path: str, body: dict[str, Any]) -> Any:
    return await program.post(path, body, content_type="application/json")


async def test_an_item_of_the_state_is_pinned_reworded_and_struck(
    program: Program, session: Session
) -> None:
    await sync_to_async(say)(session, "We use tabs", "Understood")
    view = await sync_to_async(read_state_view)(session.pk)
    item = next(one.id for one in view.items if one.kind == "decision")
    path = address(session, f"state/{item}")

    async def edit(action: str, text: str = "") -> Any:
        answer = await post(program, path, {"action": action, "text": text})
        assert answer.status_code == 200, answer.content
        assert answer.json() == (await program.get(address(session, "state"))).json()
        return answer.json()

    [pinned] = [one for one in (await edit("pin"))["items"] if one["id"] == item]
    assert (pinned["is_pinned"], pinned["actions"]) == (True, ["unpin", "edit", "strike"])
    [reworded] = [one for one in (await edit("edit", "Tabs."))["items"] if one["id"] == item]
    assert (reworded["text"], reworded["original"] != "") == ("Tabs.", True)
    struck = await edit("strike")
    assert [one["struck_by"] for one in struck["struck"]] == ["person"]
    assert (await edit("unstrike"))["struck"] == []
    refused = await post(program, path, {"action": "edit"})
    assert refused.status_code == 400
    assert (await post(program, path, {"action": "burn"})).status_code == 422


@pytest.mark.django_db
def test_the_changed_files_are_listed_page_by_page(owner: Client, session: Session) -> None:
    root, calls = Path(session.workspace.root), Calls(session)
    call = change(root, calls, *(WriteAction(path=f"{n:02}ü.txt", data=b"1") for n in range(31)))
    (root / "00ü.txt").write_text("by hand")
    first = owner.get(address(session, "changes")).json()
    assert (len(first["items"]), first["total"], first["standing"]) == (30, 31, 31)
    assert first["items"][0]["before"] is None
    assert first["items"][0]["state"] == "conflict"
    assert first["items"][0]["reason"]
    assert first["items"][1] == {
        "path": "01ü.txt",
        "before": None,
        "after": {"kind": "file", "size": 1, "mode": first["items"][1]["after"]["mode"]},
        "state": "ready",
        "reason": "",
        "moved_from": "",
        "moved_to": "",
        "calls": [str(call.uuid)],
    }
    rest = owner.get(address(session, "changes"), {"cursor": first["next"]}).json()
    assert [one["path"] for one in rest["items"]] == ["30ü.txt"]
    assert rest["next"] is None
    assert owner.get(address(session, "changes"), {"cursor": "x"}).status_code == 400


async def test_file_changes_are_reverted_and_the_revert_is_undone(
    program: Program, session: Session
) -> None:
    root = Path(session.workspace.root)

    def make() -> Any:
        return change(root, Calls(session), WriteAction(path="a.txt", data=b"1"))

    call = await sync_to_async(make)()
    path = address(session, "changes/revert")
    answer = await post(program, path, {"call": str(call.uuid)})
    assert answer.json() == {"back": ["a.txt"], "left": {}}
    assert not (root / "a.txt").exists()
    found = (await program.get(address(session, "changes"))).json()
    assert [one["state"] for one in found["items"]] == ["back"]
    [revert] = found["reverts"]
    answer = await post(program, path, {"revert": revert["uuid"]})
    assert answer.json()["back"] == ["a.txt"]
    assert (root / "a.txt").read_bytes() == b"1"
    for nothing in ({}, {"all": True, "call": str(call.uuid)}):
        assert (await post(program, path, nothing)).status_code == 400


async def test_a_summary_is_undone(program: Program, session: Session) -> None:
    for _ in range(4):
        await sync_to_async(say)(session, "Plant the beans", "In May")
    summary = await sync_to_async(compact)(session, to_turn=4, floor=3)
    path = address(session, f"summaries/{summary.uuid}/undo")
    answer = await post(program, path, {})
    assert (answer.status_code, answer.json()["uuid"]) == (200, str(session.uuid))
    assert await sync_to_async(in_force)(session) is None
    assert (await post(program, path, {})).status_code == 409
