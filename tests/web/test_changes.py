"""The page of changed files: its diffs and filters, and undoing changes."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from conversations.agent.undo.apply import MoveAction, RemoveAction, WriteAction, apply_changes
from conversations.models import Run, Session, ToolCall, Workspace
from conversations.runtime.current import current_runtime
from tests.changes.conftest import Calls, crossing

from .conftest import MakePerson, browser_of, flat

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}


@pytest.fixture
def calls(session: Session) -> Calls:
    return Calls(session)


@pytest.fixture
def root(workspace: Workspace) -> Path:
    return Path(workspace.root)


def change(root: Path, calls: Calls, *actions: Any, call: ToolCall | None = None) -> ToolCall:
    call = call or calls.make_call()
    async_to_sync(apply_changes)(root, actions, author=calls.author(call), write=crossing)
    return call


def address(session: Session, query: str = "") -> str:
    return reverse("session_changes", args=[session.uuid]) + query


def part(page: Any) -> str:
    return str(page.text.partition("panel-part")[2])


def test_session_without_changes_shows_no_form(owner: Client, session: Session) -> None:
    page = owner.get(address(session))
    assert "No files changed yet" in page.text
    assert "<form" not in part(page)


def test_each_file_has_one_diff(owner: Client, root: Path, calls: Calls) -> None:
    (root / "a.py").write_text("one\ntwo\n")
    (root / "gone.txt").write_text("gone\n")
    (root / "here.txt").write_text("content that moves\n")
    change(root, calls, WriteAction(path="a.py", data=b"one\n2\n"), RemoveAction(path="gone.txt"))
    change(root, calls, WriteAction(path="a.py", data=b"one\n2\nthree\n"))
    change(
        root,
        calls,
        WriteAction(path="new/b.bin", data=b"\0\1"),
        WriteAction(path="passing", data=b"1"),
    )
    change(
        root, calls, MoveAction(source="here.txt", target="there.txt"), RemoveAction(path="passing")
    )
    page = flat(part(owner.get(address(calls.session))))
    names = re.findall(r'item-text path">([^<]*)<', page)
    assert names == ["a.py", "gone.txt", "here.txt", "new/b.bin", "there.txt"]
    for told in (
        "+2 −1",
        "removed",
        "moved to there.txt",
        "moved from here.txt",
        "This is not text.",
        "1 created and deleted again",
        "Undo all changes",
    ):
        assert told in page, told


def test_diff_decodes_each_text_in_its_own_encoding(
    owner: Client, root: Path, calls: Calls
) -> None:
    texts = {
        "latin-1": ("für\n".encode("latin-1"), "fär\n".encode("latin-1")),
        "mark": (b"\xef\xbb\xbfa\n", b"a\n"),
        "newlines": (b"one\r\n", b"one\n"),
        "utf-16": ("für\n".encode("utf-16"), "fär\n".encode()),
    }
    for name, (before, after) in texts.items():
        (root / name).write_bytes(before)
        change(root, calls, WriteAction(path=name, data=after))
    page = part(owner.get(address(calls.session)))
    plain = flat(re.sub("<[^>]*>", "", page))
    assert plain.count("-für +fär") == 2
    for told in (
        "UTF-8 with a byte order mark → UTF-8",
        "CRLF → LF",
        "UTF-16 → UTF-8",
    ):
        assert plain.count(told) == 1, told
    assert "not text" not in plain


def test_file_names_and_contents_are_escaped(owner: Client, root: Path, calls: Calls) -> None:
    name = "<b>\u202etxt.exe"
    (root / "link").symlink_to("a")
    change(root, calls, WriteAction(path=name, data=b"<script>alert(1)</script>\n"))
    change(
        root,
        calls,
        WriteAction(path=os.fsdecode(b"caf\xe9"), data=b"1\n"),
        RemoveAction(path="link"),
    )
    page = part(owner.get(address(calls.session)))
    assert "<b>\u202e" not in page
    assert "U+202E" in page
    assert "<script>" not in page
    assert "link to a" in page


def test_changes_can_be_filtered_by_run_or_call(
    owner: Client, root: Path, calls: Calls, other_user: User
) -> None:
    run = calls.make_run()
    first = change(root, calls, WriteAction(path="a", data=b"1"), call=calls.make_call(run=run))
    change(root, calls, WriteAction(path="b", data=b"2"), call=calls.make_call(run=run))
    change(root, calls, WriteAction(path="c", data=b"3"))
    names = {
        query: re.findall(
            r'item-text path">([^<]*)<', part(owner.get(address(calls.session, query)))
        )
        for query in ("", f"?run={run.uuid}", f"?call={first.uuid}")
    }
    assert [*names.values()] == [["a", "b", "c"], ["a", "b"], ["a"]]
    assert owner.get(address(calls.session, "?call=nonsense")).status_code == 400
    assert owner.get(address(calls.session, f"?call={run.uuid}")).status_code == 404


def test_many_files_are_paginated(owner: Client, root: Path, calls: Calls) -> None:
    change(root, calls, *(WriteAction(path=f"f{number:03}", data=b"1") for number in range(70)))
    seen, where = [], address(calls.session)
    for _ in range(3):
        page = part(owner.get(where))
        seen += re.findall(r'item-text path">([^<]*)<', page)
        following = re.search(r'href="([^"]*after=[^"]*)"', page)
        where = following[1].replace("&amp;", "&") if following else ""
    assert seen == [f"f{number:03}" for number in range(70)]
    assert not where


def test_query_count_is_independent_of_the_number_of_files(
    owner: Client, root: Path, calls: Calls
) -> None:
    counts = []
    for number in range(1, 30, 14):
        change(
            root,
            calls,
            *(WriteAction(path=f"f{n}", data=f"{number}".encode()) for n in range(number)),
        )
        with CaptureQueriesContext(
            connection,
        ) as queries:
            owner.get(address(calls.session))
        counts.append(len(queries))
    assert len(set(counts)) == 1


def test_viewer_sees_no_undo_buttons(make_person: MakePerson, root: Path, calls: Calls) -> None:
    change(root, calls, WriteAction(path="a", data=b"1"))
    page = browser_of(make_person("viewer")).get(address(calls.session))
    assert "item-text path" in page.text
    assert "<form" not in part(page).replace('<form class="changes"', "")
    assert "Undo" not in part(page)


async def undo(browser: AsyncClient, session: Session, *, htmx: bool = True, **data: Any) -> Any:
    where = reverse("session_changes_revert", args=[session.uuid])
    return await browser.post(where, data, headers=HTMX if htmx else {})


@pytest.mark.django_db(transaction=True)
async def test_undo_restores_files_and_can_itself_be_undone(
    async_browser: AsyncClient, root: Path, calls: Calls
) -> None:
    (root / "a").write_text("1\n")
    await sync_to_async(change)(root, calls, WriteAction(path="a", data=b"2\n"))
    session = calls.session
    response = await undo(async_browser, session, htmx=False, all="1")
    assert (response.status_code, response["Location"]) == (302, address(session))
    assert (root / "a").read_text() == "1\n"
    page = await async_browser.get(address(session))
    assert "Restored 1 file to the state before this session." in page.text
    assert "undone" in part(page)
    revert = re.search(r'name="revert" value="([^"]*)"', page.text)
    assert revert is not None
    response = await undo(async_browser, session, revert=revert[1])
    assert response.status_code == 200
    assert "before the undo" in response.text
    assert "<html" not in response.text
    assert (root / "a").read_text() == "2\n"


@pytest.mark.django_db(transaction=True)
async def test_file_changed_since_the_call_is_restored_only_if_confirmed(
    async_browser: AsyncClient, root: Path, calls: Calls
) -> None:
    call = await sync_to_async(change)(
        root, calls, WriteAction(path="a", data=b"2\n"), WriteAction(path="b", data=b"2\n")
    )
    (root / "a").write_text("somebody else's\n")
    session = calls.session
    page = (await async_browser.get(address(session))).text
    assert "It was changed afterwards." in page
    assert "Since then:" in page
    assert "+somebody else's" in page.replace("&#x27;", "'").replace("<em>", "").replace(
        "</em>", ""
    )
    assert page.count('name="replace" value="a"') == 1
    response = await undo(async_browser, session, call=str(call.uuid))
    assert (
        "Restored 1 file to the state before this call. 1 file was left unchanged." in response.text
    )
    assert (root / "a").read_text() == "somebody else's\n"
    response = await undo(async_browser, session, call=str(call.uuid), replace=["a"])
    assert not (root / "a").exists()


@pytest.mark.django_db(transaction=True)
async def test_undo_is_refused_during_a_run(
    async_browser: AsyncClient, root: Path, calls: Calls
) -> None:
    call = await sync_to_async(change)(root, calls, WriteAction(path="a", data=b"1"))
    # The run is marked as running, because the runtime would start a run that only waits.
    runtime = await current_runtime()
    run = Run.objects.filter(pk=call.run_id)
    now = timezone.now()
    owned = {"owner": runtime.owner.id, "started_at": now, "heartbeat_at": now}
    await run.aupdate(state="running", **owned)
    response = await undo(async_browser, calls.session, all="1")
    assert response.status_code == 409
    assert "An answer is still running. Stop it first." in response.text
    assert (root / "a").exists()


@pytest.mark.django_db(transaction=True)
async def test_file_that_other_programs_run_automatically_is_marked(
    async_browser: AsyncClient, root: Path, calls: Calls
) -> None:
    await sync_to_async(change)(
        root,
        calls,
        WriteAction(path=".vscode/tasks.json", data=b"{}"),
        WriteAction(path="b", data=b"2\n"),
    )
    page = flat((await async_browser.get(address(calls.session))).text)
    assert page.count("runs automatically</b>") == 1
    assert page.count('title="Other programs run this file automatically."') == 1
