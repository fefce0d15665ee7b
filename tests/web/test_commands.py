"""Commands of the composer, with and without scripts, files by name, and the palette."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from conversations.agent.files import searching
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import add_member, create_workspace
from conversations.models import FileChange, Revert, Run, Session, Workspace
from conversations.runtime.current import current_runtime
from conversations.web.command_views import KEYS
from conversations.web.commands import COMMANDS, CommandHandlers, UnknownCommand, read_command
from loomweb.env import BASE_DIR

from .conftest import MakePerson, browser_of, say

pytestmark = pytest.mark.django_db


def of(session: Session, part: str = "") -> str:
    return f"/s/{session.uuid}/{part}"


def order(browser: Client, session: Session, text: str) -> Any:
    return browser.post(of(session, "commands/"), {"text": text})


def typed(text: str) -> tuple[str, str] | None:
    found = read_command(text)
    return None if found is None else (found.command.name, found.argument)


# Parsing commands


def test_a_known_name_at_the_start_is_a_command() -> None:
    assert typed("/help") == ("help", "")
    assert typed("/Help \n") == ("help", "")
    assert typed("/rename  The bean\tplan ") == ("rename", "The bean\tplan")
    assert typed("/history words of\nmine") == ("history", "words of\nmine")


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "//", "/etc/hosts", "/etc/hosts is what?", "/help?", "/help/me", " /help"),
        *("see /help", "/2", "/new-idea please", "/h\u0435lp", "text\n/help"),
    ],
)
def test_text_that_only_resembles_a_command_is_a_message(text: str) -> None:
    assert read_command(text) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/renam Beans", "Unknown command /renam. Did you mean /rename?"),
        ("/Hlp", "Unknown command /hlp. Did you mean /help?"),
        ("/zzzz", "Unknown command /zzzz. See /help for the list."),
        ("/clear all of it", "/clear takes no argument."),
        ("/rename", "/rename needs a title."),
    ],
)
def test_invalid_command_raises_an_explanation(text: str, says: str) -> None:
    with pytest.raises(UnknownCommand) as problem:
        read_command(text)
    assert problem.value.message == says


def test_every_command_has_a_handler_and_documentation() -> None:
    names = {command.name for command in COMMANDS}
    carried_out = {name for name in vars(CommandHandlers) if not name.startswith("_")}
    assert carried_out == {command.name for command in COMMANDS if not command.view}
    script = (BASE_DIR / "static/js/commands.js").read_text()
    table = script.split("const HERE = {")[1].split("\n};")[0]
    on_the_page = set(re.findall(r"^  (\w+)[:,]", table, re.M))
    assert on_the_page == {"help", "resume", "history", "clear"}
    assert names >= on_the_page
    described = (BASE_DIR / "docs/keys.md").read_text()
    assert set(re.findall(r"^\| `/(\w+)", described, re.M)) >= names
    for keys in KEYS.values():
        for of_key, _ in keys:
            assert all(re.search(rf"[`+]{re.escape(key)}[`+]", described) for key in of_key)


# Executing commands


def test_command_list_depends_on_the_role(
    owner: Client, session: Session, make_person: MakePerson
) -> None:
    answer = owner.get(of(session, "commands/")).json()
    assert [one["name"] for one in answer["commands"]] == [one.name for one in COMMANDS]
    assert answer["files"] == "/w/garden/paths/"
    by_name = {one["name"]: one for one in answer["commands"]}
    about = [one["about"] for one in by_name["model"]["choices"]]
    assert about
    assert all(" tokens" in text for text in about)
    german = owner.get(of(session, "commands/"), headers={"Accept-Language": "de"}).json()
    [models] = [one["choices"] for one in german["commands"] if one["name"] == "model"]
    assert all(" Token" in one["about"] for one in models)
    viewer = browser_of(make_person("viewer")).get(of(session, "commands/")).json()
    assert {one["name"] for one in viewer["commands"]} == {
        *("help", "resume", "history", "clear", "undo"),
        *(command.name for command in COMMANDS if command.view),
    }


def test_viewer_cannot_use_commands_that_change_something(
    session: Session, make_person: MakePerson
) -> None:
    viewer = browser_of(make_person("viewer"))
    for text in ("/rename Mine", "/new", "/compact", "/model claude-haiku-5-5"):
        refused = order(viewer, session, text)
        assert (refused.status_code, refused.json()["code"]) == (403, "not_permitted")
    assert order(viewer, session, "/undo").status_code == 200
    session.refresh_from_db()
    assert session.title == ""


def test_a_session_is_renamed(owner: Client, session: Session) -> None:
    assert order(owner, session, "/rename The bean plan").json()["value"] == "The bean plan"
    session.refresh_from_db()
    assert (session.title, session.title_is_chosen) == ("The bean plan", True)


def test_a_model_is_chosen_by_a_part_of_its_name(
    claude: None, owner: Client, session: Session
) -> None:
    assert order(owner, session, "/model haiku").status_code == 200
    session.refresh_from_db()
    assert "haiku" in session.model
    for text in ("/model gpt", "/model claude"):
        refused = order(owner, session, text)
        assert refused.status_code == 400
        assert refused.json()["message"].startswith("Choose one of these models: claude-")


def test_a_new_session_is_opened(owner: Client, session: Session) -> None:
    say(session, "Plant the beans", "In May")
    url = order(owner, session, "/new").json()["url"]
    assert url != of(session)
    assert owner.get(url).status_code == 200


def test_undo_opens_the_changes_of_the_last_run_not_yet_undone(
    owner: Client, session: Session
) -> None:
    assert order(owner, session, "/undo").json()["said"] == "No files were changed in this session."
    now = timezone.now()
    first, last = (
        Run.objects.create(
            session=session, client_id=f"client-000{n}", state="completed", created_at=now
        )
        for n in range(2)
    )
    for run in (first, last):
        FileChange.objects.create(session=session, run=run, path="a.txt", created_at=now)
    answer = order(owner, session, "/undo").json()
    assert (answer["url"], answer["opens"]) == (of(session, f"changes/?run={last.uuid}"), "panel")
    put_back = Revert.objects.create(session=session, created_at=now)
    FileChange.objects.filter(run=last).update(reverted_by=put_back)
    assert order(owner, session, "/undo").json()["url"].endswith(str(first.uuid))
    FileChange.objects.update(reverted_by=put_back)
    assert order(owner, session, "/undo").json()["url"] == of(session, "changes/")


def test_response_marks_text_that_is_not_a_command(owner: Client, session: Session) -> None:
    for text in ("/hlp", "/etc/hosts", "hello"):
        refused = order(owner, session, text)
        assert (refused.status_code, refused.json()["is_text"]) == (400, True)


# Commands by plain form


def send(browser: Client, session: Session, text: str, **data: str) -> Any:
    return browser.post(of(session, "send/"), {"text": text, **data}, follow=True)


def test_plain_form_executes_commands(owner: Client, session: Session) -> None:
    say(session, "Plant the beans", "In May")
    assert "Session renamed to Peas." in send(owner, session, "/rename Peas").text
    assert "Commands and keyboard shortcuts</h1>" in send(owner, session, "/help").text
    assert send(owner, session, "/resume pea").request["QUERY_STRING"] == "q=pea"
    assert "No older messages." in send(owner, session, "/history").text
    assert send(owner, session, "/history beans").request["PATH_INFO"] == of(session, "find/")
    refused = send(owner, session, "/clear")
    assert refused.status_code == 400
    assert "needs JavaScript" in refused.text
    assert "as_message" not in refused.text
    refused = send(owner, session, "/hlp me")
    assert refused.status_code == 400
    assert 'name="as_message"' in refused.text
    assert ">/hlp me</textarea>" in refused.text
    assert Run.objects.count() == 0
    assert session.turns.count() == 2


@pytest.mark.django_db(transaction=True)
async def test_command_text_can_be_sent_as_a_message(
    async_browser: AsyncClient, session: Session
) -> None:
    for text, more in (("/help", {"as_message": "1"}), ("/etc/hosts", {})):
        response = await async_browser.post(of(session, "send/"), {"text": text, **more})
        assert response.status_code == 302
        await (await current_runtime()).wait_idle(session.pk)
    said = session.turns.filter(role="user").order_by("number").values_list("content", flat=True)
    assert [text async for text in said] == ["/help", "/etc/hosts"]


@pytest.mark.django_db(transaction=True)
async def test_compact_command_starts_a_summary(
    async_browser: AsyncClient, session: Session
) -> None:
    answer = await async_browser.post(of(session, "commands/"), {"text": "/compact"})
    assert answer.status_code == 400  # the session has no messages yet
    for number in range(5):
        text = f"Tell me of bean {number}. " * 30
        await async_browser.post(of(session, "send/"), {"text": text})
        await (await current_runtime()).wait_idle(session.pk)
    answer = await async_browser.post(of(session, "commands/"), {"text": "/compact"})
    assert answer.status_code == 200, answer.json()
    assert "Summarizing" in answer.json()["said"]
    await (await current_runtime()).wait_idle(session.pk)
    assert await Run.objects.filter(kind="compact").acount() == 1


# Files


@pytest.fixture
def folder(workspace: Workspace) -> Iterator[Path]:
    searching._listings._values.clear()
    root = Path(workspace.root)
    root.mkdir(parents=True, exist_ok=True)
    yield root
    searching._listings._values.clear()


def test_files_of_the_workspace_are_found_by_name(owner: Client, folder: Path) -> None:
    (folder / "plan.md").write_text("secret words")
    (folder / "other.md").write_text("")
    response = owner.get("/w/garden/paths/", {"q": "pla"})
    assert response.json() == {"files": ["plan.md"], "note": ""}
    assert owner.get("/w/garden/paths/", {"q": "x" * 5000}).json()["files"] == []


def test_missing_workspace_folder_is_reported(
    owner: Client, workspace: Workspace, tmp_path: Path
) -> None:
    Workspace.objects.filter(pk=workspace.pk).update(root=str(tmp_path / "gone"))
    answer = owner.get("/w/garden/paths/").json()
    assert answer["files"] == []
    assert answer["note"]


# The palette


def names(answer: Any) -> list[str]:
    return [one["name"] for one in answer.json()["sessions"]]


@pytest.fixture
def titled(workspace: Workspace, user: User) -> Session:
    return create_session(workspace, owner=user, title="Zinnias in spring")


def test_palette_lists_only_sessions_of_the_persons_workspaces(
    owner: Client, titled: Session, other_user: User, make_person: MakePerson, tmp_path: Path
) -> None:
    shared = create_workspace(root=tmp_path, name="Shared", owner=other_user)
    theirs = create_session(shared, owner=other_user, title="Dahlias")
    gone = create_session(titled.workspace, owner=titled.owner, title="Archived")
    Session.objects.filter(pk=gone.pk).update(archived_at=timezone.now())
    assert names(owner.get("/palette/")) == ["Zinnias in spring"]
    assert names(browser_of(make_person("superuser")).get("/palette/")) == []
    add_member(shared, user_pk=titled.owner.pk, role="viewer")
    assert names(owner.get("/palette/")) == [theirs.title, "Zinnias in spring"]
    assert names(owner.get("/palette/", {"q": "zinn SPR"})) == ["Zinnias in spring"]
    assert names(owner.get("/palette/", {"q": "shared"})) == ["Dahlias"]
    assert names(owner.get("/palette/", {"q": "%"})) == []
    places = {one["name"] for one in owner.get("/palette/", {"all": "1"}).json()["places"]}
    assert {"Garden", "New session in Garden", "Settings of Garden", "Shared"} <= places
    assert not {"New session in Shared", "Settings of Shared", "Admin"} & places


def test_palette_is_paginated_with_a_bounded_query_count(owner: Client, titled: Session) -> None:
    for number in range(30):
        create_session(titled.workspace, owner=titled.owner, title=f"Session {number}")
    found: list[str] = []
    cursor = ""
    for _ in range(3):
        with CaptureQueriesContext(connection) as queries:
            answer = owner.get("/palette/", {"before": cursor})
        assert len(queries) <= 6
        found += names(answer)
        cursor = answer.json()["more"]
    assert cursor == ""
    assert found == [f"Session {number}" for number in range(29, -1, -1)] + ["Zinnias in spring"]
    assert owner.get("/palette/", {"before": "x"}).status_code == 400


def test_help_is_served_as_a_page_and_as_a_fragment(owner: Client) -> None:
    page = owner.get(reverse("help"))
    part = owner.get(reverse("help"), headers={"HX-Request": "true"})
    assert "<h1>" in page.text
    assert "<h1>" not in part.text
    for answer in (page, part):
        for command in COMMANDS:
            assert f"/{command.name}" in answer.text
