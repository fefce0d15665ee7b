"""Pages by plain GET and POST: workspaces, the session list, the chat, health and errors."""

import asyncio
import gzip
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import override

from conversations.archive.append import NewEvent, append
from conversations.archive.messages import accept_message
from conversations.archive.rewinds import append_rewind
from conversations.archive.runs import interrupt_run
from conversations.archive.sessions import (
    create_session,
    get_session,
    open_empty_session,
    pin_session,
    read_window_facts,
)
from conversations.archive.workspaces import create_workspace, members_of
from conversations.domain.events import AssistantText, UserMessage
from conversations.domain.turns import NewTurn
from conversations.domain.windows import WindowRules
from conversations.models import Compaction, Preferences, Run, Session, Workspace
from conversations.runtime.current import current_runtime
from conversations.runtime.model_routing import rules_of
from conversations.runtime.service import Runtime
from conversations.web.session_list import render_item
from tests.archive.turns import read_turns

from .conftest import MakePerson, browser_of, flat, say

pytestmark = pytest.mark.django_db

ROW = re.compile(r'data-seq="(\d+)"')


def seqs(response: HttpResponse) -> list[int]:
    """Return the ``seq`` of each row on the page."""
    return [int(seq) for seq in ROW.findall(response.text)]


def links(response: HttpResponse, text: str) -> list[str]:
    """Return the addresses of the links with this text."""
    found = re.findall(rf'href="([^"]+)"[^>]*>{text}</a>', response.text)
    return list(dict.fromkeys(link.replace("&amp;", "&") for link in found))


def count_queries(owner: Client, address: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert owner.get(address).status_code == 200
    return len(queries)


# --- workspaces ---


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder below which workspaces may be created, with the subfolder ``notes``."""
    folder = tmp_path / "roots"
    (folder / "notes").mkdir(parents=True)
    monkeypatch.setattr(settings.LOOM, "workspace_roots", [folder])
    return folder


def create(owner: Client, root: Path | str, name: str = "Notes") -> Any:
    return owner.post(reverse("workspace_create"), {"root": str(root), "name": name})


def test_home_lists_the_workspaces_of_the_person(
    owner: Client, workspace: Workspace, other_user: User
) -> None:
    assert links(owner.get("/"), "Garden") == ["/w/garden/"]
    empty = browser_of(other_user).get("/")
    assert "Garden" not in empty.text
    assert "No workspace" in empty.text


@pytest.mark.parametrize("role", ["viewer", "member"])
def test_non_owner_cannot_create_a_workspace_on_the_same_folder(
    workspace: Workspace, make_person: MakePerson, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    root = Path(workspace.root).resolve()
    monkeypatch.setattr(settings.LOOM, "workspace_roots", [root.parent])
    response = create(browser_of(make_person(role)), root)
    assert response.status_code == 400
    assert "Another workspace already uses this folder" in response.text


def test_a_workspace_is_created_on_a_folder_under_a_root(owner: Client, roots: Path) -> None:
    response = create(owner, roots / "notes")
    assert (response.status_code, response["Location"]) == (302, "/w/notes/")
    assert str(roots / "notes") in owner.get("/w/notes/").text
    assert owner.get("/w/notes/settings/").status_code == 200  # its creator is its owner


HIDDEN = re.compile(r'<input type="hidden" name="(initial-\w+)" value="([^"]*)">')


def read_form(response: HttpResponse) -> dict[str, Any]:
    """Return what a browser submits if a person leaves the form as it is."""
    values = {field.html_name: field.value() for field in response.context["form"]}
    values |= {name: unescape(value) for name, value in HIDDEN.findall(response.text)}
    return {
        name: re.sub("\r?\n", "\r\n", value) if isinstance(value, str) else value
        for name, value in values.items()
        if value not in (None, False)
    }


def test_two_owners_do_not_overwrite_each_others_settings(
    owner: Client, workspace: Workspace
) -> None:
    page, tools = "/w/garden/settings/", "/w/garden/settings/tools/"
    opened = read_form(owner.get(page))
    instructions = "By Anna.\r\n\r\nIn two parts."
    assert owner.post(page, opened | {"instructions": instructions}).status_code == 302
    assert owner.post(page, opened | {"keep_recent": "7"}).status_code == 302
    now = read_form(owner.get(page))
    assert (now["instructions"], now["keep_recent"]) == (instructions, 7)
    opened = read_form(owner.get(tools)) | {"allows_network": "on"}
    owner.post(tools, opened)
    opened = read_form(owner.get(tools))
    owner.post(tools, opened | {"tool_policy": "read_only"})
    owner.post(tools, {name: opened[name] for name in opened if name != "allows_network"})
    now = read_form(owner.get(tools))
    assert (now["tool_policy"], now.get("allows_network")) == ("read_only", None)
    owner.post(tools, now | {"tool_policy": "ask", "allows_network": "on"})
    now = read_form(owner.get(tools))
    assert (now["tool_policy"], now["allows_network"]) == ("ask", True)

    # A field that another owner has changed is not overwritten unseen.
    opened = read_form(owner.get(page))
    owner.post(page, opened | {"instructions": "By Anna.", "name": "Anna's"})
    refused = owner.post(page, opened | {"instructions": "By Bert.\r\nAt length."})
    assert "someone else has changed: Instructions." in flat(refused.text)
    shown = read_form(refused)
    assert (shown["instructions"], shown["name"]) == ("By Bert.\r\nAt length.", "Anna's")
    assert read_form(owner.get(page))["instructions"] == "By Anna."
    assert owner.post(page, shown).status_code == 302
    assert read_form(owner.get(page))["instructions"] == "By Bert.\r\nAt length."


def test_workspace_with_a_taken_name_gets_another_address(owner: Client, roots: Path) -> None:
    assert create(owner, roots / "notes")["Location"] == "/w/notes/"
    assert create(owner, roots / "notes")["Location"] == "/w/notes-2/"
    assert create(owner, roots / "notes", name="💥")["Location"] == "/w/workspace/"


def outside(roots: Path) -> Path:
    return roots.parent


def symlink_out(roots: Path) -> Path:
    (roots / "link").symlink_to(roots.parent)
    return roots / "link"


def symlink_loop(roots: Path) -> Path:
    (roots / "loop").symlink_to(roots / "loop")
    return roots / "loop"


def test_invalid_workspace_folder_is_refused(owner: Client, roots: Path) -> None:
    for choose, reason in [
        (outside, "A workspace must be under one of"),
        (symlink_out, "A workspace must be under one of"),
        (symlink_loop, "The folder"),
        (lambda roots: roots / "notes" / ".." / "..", "A workspace must be under one of"),
        (lambda roots: f"{roots}-elsewhere", "A workspace must be under one of"),
        (lambda roots: "/", "A workspace must be under one of"),
        (lambda roots: "~", "A workspace must be under one of"),
        (lambda roots: "~nobody-has-this-name/x", "not the path of a folder"),
        (lambda roots: roots / "missing", "The folder"),
        (lambda roots: roots / ("x" * 300), "not the path of a folder"),
        (lambda roots: "notes", "needs the absolute path"),
        (lambda roots: "../notes", "needs the absolute path"),
        (lambda roots: "", "This field is required"),
        (lambda roots: f"{roots}/notes\0", "Null characters are not allowed"),
        (lambda roots: "/" + "x" * 2000, "at most 1024 characters"),
    ]:
        response = create(owner, choose(roots))
        assert response.status_code == 400, (choose, reason)
        assert reason in response.text, (choose, reason)
        assert Workspace.objects.count() == 0, (choose, reason)


def test_settings_are_changed(owner: Client, workspace: Workspace) -> None:
    page = reverse("workspace_settings", args=["garden"])
    new = {"name": "Orchard", "instructions": "Be brief.\r\n", "default_model": ""}
    assert owner.post(page, new)["Location"] == page
    saved = owner.get(page)
    assert "Orchard" in saved.text
    assert "Be brief." in saved.text
    assert "Saved." in saved.text
    # A browser counts the end of a line as one character and sends two.
    lines = "x\n" * 50_000
    owner.post(page, new | {"instructions": lines.replace("\n", "\r\n")})
    workspace.refresh_from_db()
    assert workspace.instructions == lines


def test_workspace_can_override_the_window_rules(owner: Client, workspace: Workspace) -> None:
    page = reverse("workspace_settings", args=["garden"])
    rules = {
        "window_strategy": "sliding_window",
        "keep_recent": "7",
        "high_water": "80",
        "low_water": "20",
        "reads_instruction_files": "no",
    }
    owner.post(page, {"name": "Garden"} | rules)
    assert [owner.get(page).context["form"][name].value() for name in rules] == [
        "sliding_window",
        7,
        80,
        20,
        "no",
    ]
    facts = read_window_facts(open_empty_session(workspace, owner=workspace.members.get()).pk)
    found = rules_of(facts, WindowRules())
    assert (found.strategy, found.keep_recent) == ("sliding_window", 7)
    assert (found.high_water, found.low_water) == (0.8, 0.2)
    assert facts.reads_instruction_files is False
    owner.post(page, {"name": "Garden"})
    workspace.refresh_from_db()
    assert (workspace.window_strategy, workspace.keep_recent) == ("", None)


def test_invalid_settings_are_refused(owner: Client, workspace: Workspace) -> None:
    for wrong in [
        {"name": ""},
        {"name": " \t "},
        {"name": "x" * 121},
        {"name": "a\0b"},
        {"instructions": "x" * 100_001},
        {"instructions": "a\0b"},
        {"default_model": "no-such-model"},
        {"window_strategy": "forget"},
        {"keep_recent": "0"},
        {"high_water": "101"},
        {"low_water": "60", "high_water": "60"},
        {"low_water": "95"},
        {"high_water": "20"},
        {"reads_instruction_files": "perhaps"},
    ]:
        page = reverse("workspace_settings", args=["garden"])
        response = owner.post(page, {"name": "Orchard"} | wrong)
        assert response.status_code == 400, wrong
        assert response.context["form"].errors, wrong
        workspace.refresh_from_db()
        assert (workspace.name, workspace.instructions) == ("Garden", ""), wrong


def add(owner: Client, username: str, role: str) -> Any:
    data = {"username": username, "role": role}
    return owner.post(reverse("workspace_member_add", args=["garden"]), data)


def remove(owner: Client, username: str) -> Any:
    data = {"username": username}
    return owner.post(reverse("workspace_member_remove", args=["garden"]), data, follow=True)


def test_members_are_added_changed_and_removed(
    owner: Client, workspace: Workspace, other_user: User
) -> None:
    assert add(owner, "bob", "viewer").status_code == 302
    assert add(owner, "bob", "member").status_code == 302
    assert members_of(workspace) == [("ann", "owner"), ("bob", "member")]
    assert browser_of(other_user).get("/w/garden/").status_code == 200
    assert "bob was removed." in remove(owner, "bob").text
    assert members_of(workspace) == [("ann", "owner")]
    assert browser_of(other_user).get("/w/garden/").status_code == 404


def test_invalid_member_or_role_is_refused(
    owner: Client, workspace: Workspace, other_user: User
) -> None:
    for username, role, reason in [
        ("nobody", "member", "The account “nobody” does not exist."),
        ("bob", "emperor", "not one of the available choices"),
        ("", "member", "This field is required"),
        ("b\0b", "member", "Null characters are not allowed"),
    ]:
        response = add(owner, username, role)
        assert response.status_code == 400, (username, role, reason)
        assert reason in response.text, (username, role, reason)
        assert len(members_of(workspace)) == 1, (username, role, reason)


def test_removing_an_unknown_member_changes_nothing(owner: Client, workspace: Workspace) -> None:
    for username in ["", "nobody", "b\0b", "x" * 10_000]:
        assert "does not exist" in remove(owner, username).text, username
        assert len(members_of(workspace)) == 1, username


def test_last_owner_cannot_be_removed_or_demoted(owner: Client, workspace: Workspace) -> None:
    assert "must keep at least one owner" in remove(owner, "ann").text
    assert "must keep at least one owner" in add(owner, "ann", "viewer").text
    assert members_of(workspace) == [("ann", "owner")]


def test_owner_may_leave_if_another_owner_remains(
    owner: Client, workspace: Workspace, other_user: User
) -> None:
    add(owner, "bob", "owner")
    response = remove(owner, "ann")
    assert response.redirect_chain[-1] == (reverse("home"), 302)
    assert members_of(workspace) == [("bob", "owner")]


# --- the session list ---


def make_session(workspace: Workspace, title: str, *, days: float = 0, **more: Any) -> Session:
    owner = User.objects.get(username="ann")
    moment = timezone.now() - timedelta(days=days)
    return create_session(workspace, owner=owner, title=title, created_at=moment, **more)


def titles(response: HttpResponse) -> list[str]:
    return re.findall(r'<span class="title">([^<]+)</span>', flat(response.text))


def groups(response: HttpResponse) -> list[str]:
    return re.findall(r'<section class="group"><h2>([^<]+)</h2>', flat(response.text))


def test_sessions_are_grouped_by_date(owner: Client, workspace: Workspace) -> None:
    for title, days in (("old", 400), ("month", 20), ("week", 3), ("eve", 1), ("now", 0)):
        make_session(workspace, title, days=days)
    response = owner.get("/w/garden/")
    assert titles(response) == ["now", "eve", "week", "month", "old"]
    long_ago = timezone.now() - timedelta(days=400)
    assert groups(response) == [
        "Today",
        "Yesterday",
        "Previous 7 days",
        "Previous 30 days",
        f"{long_ago:%B %Y}",
    ]
    Preferences.objects.create(user=User.objects.get(username="ann"), language="fr")
    french = groups(owner.get("/w/garden/"))[-1]
    with override("fr"):
        assert french == date_format(long_ago, "F Y")


def test_session_list_uses_the_days_of_the_readers_time_zone(
    owner: Client, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    evening = datetime(2026, 3, 2, 1, 0, tzinfo=UTC)  # five o'clock the day before in California
    monkeypatch.setattr(timezone, "now", lambda: evening)
    make_session(workspace, "six hours ago", days=0.25)
    make_session(workspace, "since midnight")
    assert groups(owner.get("/w/garden/")) == ["Today", "Yesterday"]
    owner.cookies["loom_zone"] = "America/Los_Angeles"
    assert groups(owner.get("/w/garden/")) == ["Today"]
    owner.cookies["loom_zone"] = "nowhere"
    assert groups(owner.get("/w/garden/")) == ["Today", "Yesterday"]


def offered(browser: Client, address: str) -> dict[str, str]:
    """Return the field that the list's button for this address would send."""
    text = browser.get("/w/garden/").text + browser.get("/w/garden/?archived=1").text
    name, value = re.findall(rf'formaction="{address}" name="(\w+)"\s+value="(\w+)"', text)[0]
    return {name: value}


def test_pinned_sessions_come_first(owner: Client, workspace: Workspace) -> None:
    old = make_session(workspace, "old", days=40)
    make_session(workspace, "now")
    pin = reverse("session_pin", args=[old.uuid])
    wish = offered(owner, pin)
    for _ in range(2):  # as by a double click
        owner.post(pin, wish)
    response = owner.get("/w/garden/")
    assert titles(response) == ["old", "now"]
    assert groups(response) == ["Pinned", "Today"]
    owner.post(pin, offered(owner, pin))
    assert titles(owner.get("/w/garden/")) == ["now", "old"]


def test_session_menu_is_on_every_page_with_the_session_list(
    owner: Client, workspace: Workspace, session: Session
) -> None:
    other = make_session(workspace, "other")
    pin = reverse("session_pin", args=[other.uuid])
    for page in ("/w/garden/", chat(session), "/w/garden/settings/"):
        assert pin in owner.get(page).text, page
    for elsewhere in ("https://evil.example/", "//evil.example/", ""):
        headers = {"Referer": elsewhere} if elsewhere else {}
        assert owner.post(pin, headers=headers)["Location"] == chat(other)


def test_session_can_be_archived_and_unarchived(owner: Client, session: Session) -> None:
    say(session, "Plant the beans")
    archive = reverse("session_archive", args=[session.uuid])
    wish = offered(owner, archive)
    for _ in range(2):  # as by a double click
        response = owner.post(archive, wish, headers={"Referer": "http://testserver/w/garden/?q=a"})
        assert response["Location"] == "http://testserver/w/garden/?q=a"
    assert titles(owner.get("/w/garden/")) == []
    archived = owner.get("/w/garden/?archived=1")
    assert titles(archived) == ["Plant the beans"]
    assert "Archived sessions</small>" in archived.text
    page = owner.get(f"/s/{session.uuid}/")
    assert "This session is archived." in page.text
    assert 'name="text"' not in page.text
    assert 'name="archived" value="0"' in page.text
    Session.objects.update(expires_at=timezone.now())
    page = owner.get(f"/s/{session.uuid}/")
    assert "This session has expired." in page.text
    assert "Unarchive it to continue" not in page.text
    owner.post(archive, offered(owner, archive))
    assert titles(owner.get("/w/garden/")) == ["Plant the beans"]


def test_archived_empty_session_offers_no_examples(owner: Client, session: Session) -> None:
    address = reverse("session", args=[session.uuid])
    assert "What should we work on?" in owner.get(address).text
    Session.objects.update(archived_at=timezone.now())
    assert "What should we work on?" not in owner.get(address).text


def test_the_filter_finds_words_of_title_and_last_text(owner: Client, workspace: Workspace) -> None:
    make_session(workspace, "Beans in May", days=1)
    say(make_session(workspace, "Peas"), "For the soup")
    for query, found in [
        ("beans", ["Beans in May"]),
        ("BEANS may", ["Beans in May"]),
        ("soup", ["Peas"]),
        ("e", ["Peas", "Beans in May"]),
        ("100%", []),
        ("_", []),
        ("no such", []),
    ]:
        response = owner.get("/w/garden/", {"q": query})
        assert titles(response) == found, (query, found)
        if not found:
            assert "No sessions match" in response.text, (query, found)


@pytest.mark.parametrize(("role", "sees"), [("viewer", True), ("reviewer", False)])
def test_session_list_shows_message_text_only_to_members(
    session: Session, workspace: Workspace, make_person: MakePerson, role: str, sees: bool
) -> None:
    say(session, "Hello", "The secret is out")
    Session.objects.filter(pk=session.pk).update(title="Peas", preview="The secret is out")
    address = reverse("workspace", args=[workspace.slug])
    browser = browser_of(make_person(role))
    assert "Peas" in browser.get(address).text
    assert ("The secret is out" in browser.get(address).text) is sees
    assert ("Peas" in browser.get(address, {"q": "secret"}).text) is sees


def test_filter_by_htmx_returns_only_the_list(owner: Client, workspace: Workspace) -> None:
    make_session(workspace, "Beans")
    response = owner.get("/w/garden/", {"q": "b"}, headers={"HX-Request": "true"})
    assert titles(response) == ["Beans"]
    assert "<html" not in response.text
    assert "HX-Request" in response["Vary"]


def test_the_list_is_paged_by_cursor(
    owner: Client, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "session_list_size", 3)
    for number in range(8):
        make_session(workspace, f"s{number}", days=number)
    seen, costs, address = [], [], "/w/garden/"
    while address:
        costs.append(count_queries(owner, address))
        response = owner.get(address)
        seen += titles(response)
        [address] = links(response, "Load more") or [""]
    assert seen == [f"s{number}" for number in range(8)]
    assert len(set(costs)) == 1


def test_next_page_keeps_the_filter(
    owner: Client, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "session_list_size", 1)
    for number in range(3):
        make_session(workspace, f"a & b {number}", days=number)
        make_session(workspace, f"c {number}", days=number)
    first = owner.get("/w/garden/", {"q": "a & b"})
    [more] = links(first, "Load more")
    assert titles(owner.get(more)) == ["a &amp; b 1"]


def test_a_new_session_does_not_shift_the_next_page(
    owner: Client, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "session_list_size", 2)
    for number in range(4):
        make_session(workspace, f"s{number}", days=number)
    [more] = links(owner.get("/w/garden/"), "Load more")
    make_session(workspace, "new")
    assert titles(owner.get(more)) == ["s2", "s3"]


BAD_CURSORS = [
    "nonsense",
    "~",
    "2026-01-01T00:00:00+00:00",
    "2026-01-01T00:00:00+00:00~x",
    "2026-01-01T00:00:00~1",
    "0001-01-01T00:00:00+14:00~1",
    "9999-12-31T23:59:59-14:00~1",
    "x\0",
    "~" + "9" * 5000,
]


def test_malformed_list_cursor_is_refused(owner: Client, workspace: Workspace) -> None:
    for cursor in BAD_CURSORS:
        response = owner.get("/w/garden/", {"before": cursor})
        assert response.status_code == 400, cursor
        assert "not a cursor of the session list" in response.text, cursor


def test_list_cursor_beyond_the_end_gives_an_empty_page(
    owner: Client, workspace: Workspace
) -> None:
    make_session(workspace, "one")
    cursor = "2000-01-01T00:00:00+00:00~" + "9" * 30
    assert titles(owner.get("/w/garden/", {"before": cursor})) == []


@pytest.mark.parametrize(
    ("state", "mark"),
    [("running", "Running"), ("interrupted", "Interrupted"), ("queued", "Queued")],
)
def test_session_list_shows_the_run_state(
    owner: Client, session: Session, user: User, state: str, mark: str
) -> None:
    process = "" if state == "queued" else "elsewhere"
    accepted = accept_message(
        session, client_id="client-01", text="Go", user_pk=user.pk, max_queued=5, owner=process
    )
    if state == "interrupted":
        interrupt_run(accepted.run_pk, owner=process)
    response = owner.get("/w/garden/")
    assert f'<span class="mark" data-state="{state}">{mark}</span>' in flat(response.text)
    home = owner.get("/")
    assert ("1 running" in home.text) == (state == "running")


def test_opening_a_session_never_reorders_the_list(owner: Client, workspace: Workspace) -> None:
    old = make_session(workspace, "old", days=3)
    make_session(workspace, "now")
    owner.get(f"/s/{old.uuid}/")
    owner.post(reverse("session_rename", args=[old.uuid]), {"title": "Old"})
    assert titles(owner.get("/w/garden/")) == ["now", "Old"]


def test_query_counts_are_independent_of_the_number_of_sessions(
    owner: Client, workspace: Workspace, session: Session
) -> None:
    say(session, "Hello", "Hi")
    pages = (f"/s/{session.uuid}/", "/w/garden/")
    owner.get(pages[0])  # the first page of a browser writes more
    costs = [count_queries(owner, page) for page in pages]
    of_chat, of_list = costs
    assert of_chat <= 16
    assert of_list <= 10  # a feature may make one of these queries
    for number in range(60):
        make_session(workspace, f"s{number}", days=number)
    for pinned in Session.objects.order_by("pk")[5:9]:
        pin_session(pinned, pinned=True)
        say(pinned, "Hello")
    assert [count_queries(owner, page) for page in pages] == costs


def test_unchanged_list_items_are_rendered_once(owner: Client, workspace: Workspace) -> None:
    sessions = [make_session(workspace, f"s{number}", days=number) for number in range(9)]

    def rendered(address: str) -> int:
        before = render_item.cache_info().misses
        assert owner.get(address).status_code == 200
        return render_item.cache_info().misses - before

    assert rendered("/w/garden/") == 9
    assert rendered("/w/garden/") == 0
    # A chat renders one item anew, because it is marked as the current one.
    assert rendered(f"/s/{sessions[0].uuid}/") == 1
    assert rendered(f"/s/{sessions[1].uuid}/") == 1
    say(sessions[3], "Hello")
    assert rendered("/w/garden/") == 1
    assert titles(owner.get("/w/garden/"))[0] == "s3"


def test_forms_of_the_list_contain_the_csrf_token_of_their_reader(
    workspace: Workspace, session: Session, user: User, make_person: MakePerson
) -> None:
    """Both browsers get the same rendered items."""
    forms = {}
    for person in (user, make_person("member")):
        browser = Client(enforce_csrf_checks=True)
        browser.force_login(person)
        text = browser.get("/w/garden/").text
        forms[browser] = set(re.findall(r'csrfmiddlewaretoken" value="([^"]+)"', text))
        assert "@token-" not in text
    (one, ones), (_, others) = forms.items()
    assert ones.isdisjoint(others)
    pin = reverse("session_pin", args=[session.uuid])
    assert one.post(pin, {"csrfmiddlewaretoken": others.pop()}).status_code == 403
    assert one.post(pin, {"csrfmiddlewaretoken": ones.pop()}).status_code == 302


def test_list_items_rendered_for_members_are_not_shown_to_reviewers(
    owner: Client, session: Session, workspace: Workspace, make_person: MakePerson
) -> None:
    say(session, "Hello", "The secret is out")
    assert "The secret is out" in owner.get("/w/garden/").text
    reviewer = browser_of(make_person("reviewer"))
    assert "The secret is out" not in reviewer.get("/w/garden/").text
    assert "Rename" not in reviewer.get("/w/garden/").text


def test_page_is_compressed_if_the_browser_accepts_gzip(
    owner: Client, workspace: Workspace
) -> None:
    make_session(workspace, "Beans")
    plain = owner.get("/w/garden/")
    assert "Content-Encoding" not in plain
    packed = owner.get("/w/garden/", headers={"Accept-Encoding": "br, gzip"})
    assert packed["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in plain["Vary"]
    assert "Accept-Encoding" in packed["Vary"]
    assert int(packed["Content-Length"]) == len(packed.content) < len(plain.content) / 2
    assert "Beans" in gzip.decompress(packed.content).decode()
    lengths = {
        len(owner.get("/w/garden/", headers={"Accept-Encoding": "gzip"}).content) for _ in range(9)
    }
    assert len(lengths) > 1  # the length varies, so that it reveals nothing


def test_empty_session_is_reused_before_another_is_created(
    owner: Client, workspace: Workspace
) -> None:
    new = reverse("session_create", args=["garden"])
    first = owner.post(new)["Location"]
    assert owner.post(new)["Location"] == first
    say(Session.objects.get(), "Used")
    assert owner.post(new)["Location"] != first


def test_start_opens_the_last_chat(owner: Client, workspace: Workspace, user: User) -> None:
    make_session(workspace, "old", days=2)
    latest = make_session(workspace, "latest")
    assert owner.get("/start/")["Location"] == f"/s/{latest.uuid}/"
    root = Path(workspace.root)
    create_workspace(root=root, name="Second", owner=user)
    assert owner.get("/start/")["Location"] == "/"


# --- the chat ---


def fill(session: Session, count: int) -> None:
    """Append many messages at once. Row n is turn n with the text ``text n``."""
    payloads = [
        AssistantText(text=f"text {n}") if n % 2 else UserMessage(text=f"text {n}")
        for n in range(1, count + 1)
    ]
    append(
        session.pk,
        session_uuid=session.uuid,
        turns=[
            NewTurn(role="assistant" if n % 2 else "user", content=f"text {n}")
            for n in range(1, count + 1)
        ],
        events=[NewEvent(payload=payload, new=place) for place, payload in enumerate(payloads)],
    )
    session.refresh_from_db()


@pytest.fixture
def long(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session of more than two pages."""
    monkeypatch.setattr(settings.LOOM, "page_size", 25)
    monkeypatch.setattr(settings.LOOM, "older_page_size", 20)
    fill(session, 60)
    return session


def chat(session: Session, query: str = "") -> str:
    return f"/s/{session.uuid}/{query}"


def test_the_chat_opens_at_its_end(owner: Client, long: Session) -> None:
    response = owner.get(chat(long))
    assert seqs(response) == list(range(36, 61))
    assert 'data-last-seq="60"' in response.text
    assert links(response, "Load older") == [chat(long, "?before=seq%3A36")]
    assert links(response, "Load newer") == []


def test_before_cursor_shows_the_older_rows(owner: Client, long: Session) -> None:
    response = owner.get(chat(long, "?before=seq:36"))
    assert seqs(response) == list(range(11, 36))
    assert links(response, "Load older") == [chat(long, "?before=seq%3A11")]
    assert links(response, "Load newer") == [chat(long, "?after=seq%3A35")]
    assert links(owner.get(chat(long, "?before=seq:11")), "Load older") == []


def test_after_cursor_shows_the_newer_rows(owner: Client, long: Session) -> None:
    response = owner.get(chat(long, "?after=seq:35"))
    assert seqs(response) == list(range(36, 61))
    assert links(response, "Load newer") == []
    assert seqs(owner.get(chat(long, "?after=seq:0"))) == list(range(1, 26))


def test_htmx_gets_rows_and_the_next_link_only(owner: Client, long: Session) -> None:
    response = owner.get(chat(long, "?before=seq:36"), headers={"HX-Request": "true"})
    assert seqs(response) == list(range(16, 36))
    assert links(response, "Load older") == [chat(long, "?before=seq%3A16")]
    assert "<html" not in response.text
    assert "HX-Request" in response["Vary"]
    assert "HX-Request" in owner.get(chat(long))["Vary"]


def test_paging_in_either_direction_shows_every_row_once(owner: Client, long: Session) -> None:
    def walk(address: str, text: str) -> Iterator[list[int]]:
        while address:
            response = owner.get(address)
            yield seqs(response)
            [address] = links(response, text) or [""]

    back = list(walk(chat(long), "Load older"))
    assert [seq for page in reversed(back) for seq in page] == list(range(1, 61))
    forth = walk(chat(long, "?after=seq:0"), "Load newer")
    assert [seq for page in forth for seq in page] == list(range(1, 61))


def test_permalink_shows_the_turn_with_the_rows_around_it(owner: Client, long: Session) -> None:
    response = owner.get(chat(long, "t/30/"))
    shown = seqs(response)
    assert shown == list(range(shown[0], shown[0] + 25))
    assert shown[0] < 30 < shown[-1]
    assert 'data-target="30"' in response.text
    [older], [newer] = links(response, "Load older"), links(response, "Load newer")
    assert seqs(owner.get(older))[-1] == shown[0] - 1
    assert seqs(owner.get(newer))[0] == shown[-1] + 1


def test_permalink_to_the_first_or_last_turn_has_one_paging_link(
    owner: Client, long: Session
) -> None:
    for turn, has_older, has_newer in ((1, False, True), (60, True, False)):
        response = owner.get(chat(long, f"t/{turn}/"))
        assert turn in seqs(response)
        assert bool(links(response, "Load older")) == has_older
        assert bool(links(response, "Load newer")) == has_newer


def test_an_unknown_turn_is_not_found(owner: Client, session: Session) -> None:
    fill(session, 3)
    for turn in ("0", "4", "9" * 20, "9" * 5000, "-1", "1.0", "٣", "1e3", "%00", "0x1"):
        assert owner.get(chat(session, f"t/{turn}/")).status_code == 404, turn
        assert owner.get(chat(session, f"t/{turn}/source/")).status_code == 404, turn


def test_a_bad_cursor_is_refused_with_the_reason(owner: Client, session: Session) -> None:
    for cursor in ["nonsense", "seq:", "seq:-1", "seq:" + "9" * 19, "\0", "turn:x"]:
        for name in ["before", "after"]:
            response = owner.get(chat(session), {name: cursor})
            assert response.status_code == 400, (cursor, name)
            assert "A cursor must look like seq:123 or turn:45." in response.text, (cursor, name)
            partial = owner.get(chat(session), {name: cursor}, headers={"HX-Request": "true"})
            assert partial.status_code == 400, (cursor, name)


def test_a_cursor_beyond_the_ends_is_no_error(owner: Client, session: Session) -> None:
    fill(session, 3)
    for cursor in ["seq:" + "9" * 18, "turn:" + "9" * 18, "turn:1.999999", "seq:0"]:
        for name in ("before", "after"):
            assert owner.get(chat(session), {name: cursor}).status_code == 200, cursor


def test_source_of_a_turn_is_its_exact_text(owner: Client, session: Session) -> None:
    text = "<script>alert(1)</script>\r\n\ttabs, 💥 and\u2028more"
    say(session, text)
    response = owner.get(chat(session, "t/1/source/"))
    assert response.content.decode() == text
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Disposition"] == 'inline; filename="turn-1.txt"'


def test_query_count_of_a_chat_is_independent_of_its_length(
    owner: Client, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "page_size", 8)
    costs = {}
    for count in (10, 60):
        session = make_session(workspace, f"of {count}")
        fill(session, count)
        addresses = [chat(session), chat(session, "?before=seq:9"), chat(session, "t/5/")]
        for address in addresses:
            owner.get(address)
        costs[count] = [count_queries(owner, address) for address in addresses]
    assert costs[10] == costs[60]
    assert max(costs[60]) <= 19  # three are for preferences and the menu's permissions


def test_replaced_rows_are_shown_on_demand(owner: Client, session: Session, user: User) -> None:
    fill(session, 6)
    append_rewind(session, from_turn=3, from_seq=3, reason="edit", actor_pk=user.pk)
    session.refresh_from_db()
    fill(session, 1)
    response = owner.get(chat(session))
    assert seqs(response) == [1, 2, 6, 7]  # a marker stands at the place of row 6
    assert "Earlier version" in response.text
    everything = owner.get(chat(session, "?all=1"))
    assert seqs(everything) == list(range(1, 8))
    assert seqs(owner.get(chat(session, "t/4/"))) == list(range(1, 8))


def test_a_viewer_may_read_and_sees_no_composer(session: Session, viewer: User) -> None:
    say(session, "Plant the beans")
    response = browser_of(viewer).get(chat(session))
    assert "Plant the beans" in response.text
    assert 'name="text"' not in response.text
    assert "You can read it but not write in it." in response.text


# --- a message by a plain form ---


@pytest.mark.django_db(transaction=True)
async def test_a_message_by_a_form_is_answered_once(
    async_browser: AsyncClient, session: Session
) -> None:
    data = {"text": "Plant the\r\nbeans", "client_id": "client-0001"}
    for _ in range(2):  # as by a double click
        response = await async_browser.post(chat(session, "send/"), data)
        assert (response.status_code, response["Location"]) == (302, chat(session))
    await (await current_runtime()).wait_idle(session.pk)
    page = await async_browser.get(chat(session))
    assert "Hello from the demo model" in page.text
    assert seqs(page) == [1, 2, 3]
    assert await Run.objects.aget(state="completed")
    turns = [turn async for turn in session.turns.order_by("number")]
    assert turns[0].content == "Plant the\nbeans"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("closed_by", ["archived_at", "expires_at"])
async def test_message_to_a_closed_session_is_refused_and_stays_in_the_form(
    async_browser: AsyncClient, session: Session, closed_by: str
) -> None:
    await Session.objects.filter(pk=session.pk).aupdate(**{closed_by: timezone.now()})
    response = await async_browser.post(chat(session, "send/"), {"text": "Plant <leeks>"})
    assert response.status_code == 409
    [notice] = re.findall(r'<div id="refused"[^>]*>\s*(.*?)\s*</div>', response.text)
    assert notice.startswith("This session ")
    assert "Plant &lt;leeks&gt;</textarea>" in response.text
    assert await session.turns.acount() == 0


async def talk(browser: AsyncClient, session: Session, *, times: int) -> Runtime:
    """Send messages without an id, as a form without JavaScript does."""
    runtime = await current_runtime()
    for number in range(times):
        data = {"text": f"Tell me of bean {number}. " * 30}
        assert (await browser.post(chat(session, "send/"), data)).status_code == 302
        await runtime.wait_idle(session.pk)
    return runtime


@pytest.mark.django_db(transaction=True)
async def test_forms_summarise_older_turns_and_undo_the_summary(
    async_browser: AsyncClient, session: Session
) -> None:
    await async_browser.post(chat(session, "compact/"))
    assert "There is nothing to summarize yet." in (await async_browser.get(chat(session))).text
    runtime = await talk(async_browser, session, times=6)
    response = await async_browser.post(chat(session, "compact/"))
    assert (response.status_code, response["Location"]) == (302, chat(session))
    await runtime.wait_idle(session.pk)
    kept = await Compaction.objects.aget()
    assert (kept.to_turn, kept.reason) == (4, "manual")
    other = await sync_to_async(create_session)(session.workspace, owner=session.owner)
    of_other = chat(other, f"compactions/{kept.uuid}/undo/")
    assert (await async_browser.post(of_other)).status_code == 404
    undo = chat(session, f"compactions/{kept.uuid}/undo/")
    page = await async_browser.get(chat(session))
    assert f'formaction="{undo}"' in page.text
    assert (await async_browser.post(undo)).status_code == 302
    page = await async_browser.get(chat(session))
    assert "The summary of turns 1–4 is undone." in page.text
    await async_browser.post(undo)
    assert "This summary is already undone." in (await async_browser.get(chat(session))).text


@pytest.mark.django_db(transaction=True)
async def test_archiving_summarises_the_session_if_the_setting_is_on(
    async_browser: AsyncClient, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = await talk(async_browser, session, times=6)
    for is_on in (False, True):
        monkeypatch.setattr(settings.LOOM, "compact_at_end", is_on)
        await async_browser.post(chat(session, "archive/"), {"archived": "1"})
        await async_browser.get(chat(session))
        while runtime.database.background:  # the event loop removes an ended task later
            await asyncio.sleep(0.01)
        await runtime.wait_idle(session.pk)
        reasons = [compaction.reason async for compaction in Compaction.objects.all()]
        assert reasons == ["end"] * is_on
        await async_browser.post(chat(session, "archive/"), {"archived": "1"})
        await async_browser.post(chat(session, "archive/"), {"archived": "0"})
        assert await Compaction.objects.acount() == len(reasons)


def test_a_refused_message_stays_in_the_composer(
    owner: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "max_message_chars", 50)
    for text, status, reason in [
        ("x" * 51, 413, "This message has 51 characters; the limit is 50."),
        (" \n ", 400, "The message is empty."),
        ("", 400, "The message is empty."),
    ]:
        response = owner.post(chat(session, "send/"), {"text": text})
        assert response.status_code == status, (text, status, reason)
        assert reason in response.text, (text, status, reason)
        [kept] = re.findall(
            r"<textarea[^>]*>([^<]*)</textarea>", response.text.split('id="composer"')[1]
        )[:1]
        assert kept == text, (text, status, reason)
        assert read_turns(session.pk) == [], (text, status, reason)


def test_a_bad_client_id_is_refused(owner: Client, session: Session) -> None:
    for client_id in ["short", "x" * 65, "with space", "a\0bcdefgh", "é" * 10]:
        data = {"text": "Hello", "client_id": client_id}
        assert owner.post(chat(session, "send/"), data).status_code == 400, client_id


def test_queued_message_that_utf8_cannot_encode_is_shown(
    owner: Client, session: Session, user: User
) -> None:
    """JSON over the socket can carry half a surrogate pair, but a page cannot."""
    for number, text in enumerate(("first", "half \ud83d of it", "nul \0")):
        accept_message(
            session, client_id=f"client-0{number}", text=text, user_pk=user.pk, max_queued=5
        )
    response = owner.get(chat(session))
    assert response.status_code == 200
    assert "half \ufffd of it" in response.text


# --- title and model ---


def rename(owner: Client, session: Session, title: str) -> Any:
    return owner.post(chat(session, "rename/"), {"title": title}, follow=True)


def test_a_session_is_renamed(owner: Client, session: Session) -> None:
    assert (
        '<h1 id="title">Beans &amp; &lt;peas&gt;</h1>'
        in rename(owner, session, "  Beans &\n<peas> ").text
    )


def test_empty_title_is_refused(owner: Client, session: Session) -> None:
    rename(owner, session, "Beans")
    for title in ["", " \t", "\u202e"]:
        response = rename(owner, session, title)
        assert "A title must have at least one character." in response.text, title
        assert get_session(session.uuid).title == "Beans", title


def test_odd_or_too_long_title_is_stored_in_a_valid_form(owner: Client, session: Session) -> None:
    for title in ["a\0b", "x" * 100_000, "💥" * 300, "\u202ea"]:
        assert rename(owner, session, title).status_code == 200, title
        assert 0 < len(get_session(session.uuid).title) <= 120, title


def test_a_model_is_chosen(claude: None, owner: Client, session: Session) -> None:
    response = owner.post(chat(session, "model/"), {"model": "claude-opus-5-5"}, follow=True)
    assert '<option value="claude-opus-5-5" label="opus-5-5" selected>' in flat(response.text)


def test_an_unknown_model_is_refused(owner: Client, session: Session) -> None:
    for model in ["", "no-such-model", "a\0b", "x" * 10_000]:
        response = owner.post(chat(session, "model/"), {"model": model})
        assert response.status_code == 400, model
        assert "This model is not available." in response.text, model
        assert get_session(session.uuid).model == "", model


def test_next_field_cannot_redirect_a_form_elsewhere(owner: Client, session: Session) -> None:
    for wanted in ["https://evil.example/", "//evil.example", "/admin/", "x\r\ny"]:
        response = owner.post(chat(session, "pin/"), {"next": wanted})
        assert response["Location"] == chat(session), wanted


# --- health and metrics ---


def test_health_checks_answer_without_a_sign_in(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.head("/healthz").status_code == 200
    assert client.get("/readyz").json() == {"status": "ready"}


def test_health_and_metrics_accept_any_host(client: Client) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert client.get(path, headers={"host": "10.0.0.7:8000"}).status_code == 200
    assert client.get("/healthz/", headers={"host": "10.0.0.7:8000"}).status_code == 400


def test_an_archive_without_guards_is_not_ready(client: Client) -> None:
    with connection.cursor() as cursor:
        on_table = " ON conversations_turn" if connection.vendor == "postgresql" else ""
        cursor.execute(f"DROP TRIGGER conversations_turn_no_update{on_table}")
    response = client.get("/readyz")
    assert (response.status_code, response.json()) == (503, {"status": "archive not guarded"})


def test_readyz_warns_but_stays_ready_if_disk_space_is_low(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "min_free_mib", 2**40)
    response = client.get("/readyz")
    assert response.status_code == 200
    assert response.json()["status"] == "ready"
    assert "low on disk space" in response.json()["warnings"][0]


def test_metrics_are_in_the_prometheus_text_format(
    client: Client, session: Session, user: User
) -> None:
    accept_message(session, client_id="client-01", text="Go", user_pk=user.pk, max_queued=5)
    response = client.get("/metrics")
    assert response["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    assert "loom_runs_queued 1" in lines
    assert "# TYPE loom_runs_queued gauge" in lines
    for line in lines:
        assert re.fullmatch(r"# (HELP|TYPE) loom_\w+ .+|loom_\w+ [0-9.]+", line)


# --- errors, content security policy, markup ---


def test_an_unknown_page_is_not_found(client: Client, owner: Client) -> None:
    for who in (client, owner):
        response = who.get("/no/such/page/")
        assert response.status_code == 404
        assert "Not found" in response.text


def test_viewer_gets_403_for_a_change(session: Session, viewer: User) -> None:
    response = browser_of(viewer).post(chat(session, "pin/"))
    assert response.status_code == 403
    assert "Not allowed" in response.text


def test_get_of_a_form_address_answers_405_with_an_explanation(
    owner: Client, session: Session
) -> None:
    for client in (owner, Client()):
        for path in ("/workspaces/new/", "/w/garden/members/add/", f"/s/{session.uuid}/rename/"):
            response = client.get(path)
            assert (response.status_code, response["Allow"]) == (405, "POST"), path
            assert "This address only accepts submitted forms." in response.text, path
            assert 'href="/"' in response.text, path
    assert (owner.post("/w/garden/").status_code, owner.post("/w/garden/").content) == (405, b"")


def test_server_error_shows_a_page_without_details(owner: Client, workspace: Workspace) -> None:
    owner.raise_request_exception = False
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE conversations_membership RENAME TO elsewhere")
    response = owner.get("/w/garden/")
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("ALTER TABLE elsewhere RENAME TO conversations_membership")
    assert response.status_code == 500
    assert "Something went wrong" in response.text
    assert "elsewhere" not in response.text
    assert response["Content-Security-Policy"]


def test_unknown_host_is_refused(client: Client) -> None:
    for host in ["evil.example", "testserver.evil.example", "a b", ""]:
        response = client.get("/sign-in/", headers={"Host": host})
        assert response.status_code == 400, host
        assert response["Content-Security-Policy"], host


def test_odd_query_string_causes_no_server_error(owner: Client, session: Session) -> None:
    session_pages = (chat(session), chat(session, "t/1/"), chat(session, "find/"))
    for query in [
        "q=%00",
        "q=%ff%fe",
        "q=%ed%a0%80",
        "q=" + "x" * 100_000,
        "q=" + "x+" * 5000,
        "q=" + quote("%" * 30_000),
        "q[]=1&q=",
        "archived=%00",
        "before=",
        "a" * 5000,
        "&" * 500,
    ]:
        for page in ("/w/garden/", "/", *session_pages, "/search/", "/sign-in/"):
            assert owner.get(f"{page}?{query}").status_code in (200, 302, 404), query


def test_odd_path_causes_no_server_error(owner: Client, workspace: Workspace) -> None:
    for path in ["/w/%00/", "/w/%ff/", "/s/%00/", "/w/gar%64en/", "/w/GARDEN/"]:
        assert owner.get(path).status_code in (200, 404), path


def test_a_body_that_is_too_large_is_refused(owner: Client, session: Session) -> None:
    text = "x" * (settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)
    response = owner.post(
        chat(session, "send/"), f"text={text}", content_type="application/x-www-form-urlencoded"
    )
    assert response.status_code in (400, 413)


def test_malformed_body_causes_no_server_error(owner: Client, session: Session) -> None:
    for body in [b"text=%ff%fe", b"\xff\xfe\x00", b"text=\xed\xa0\x80"]:
        for action in ("rename/", "model/", "pin/"):
            response = owner.post(
                chat(session, action), body, content_type="application/x-www-form-urlencoded"
            )
            assert response.status_code in (302, 400), body


@pytest.fixture
def pages(owner: Client, session: Session, user: User) -> dict[str, HttpResponse]:
    """One page of every kind, with hostile content wherever content is shown."""
    hostile = (
        '<img src=x onerror=alert(1)> <b style="x" onclick="y">z</b> [l](javascript:alert(1))\n\n'
        "```html\n<script>alert(1)</script>\n```\n\n| a |\n|:-:|\n| <svg onload=alert(1)> |\n"
        '<style>*{}</style><script>alert(1)</script><a href="data:text/html,x">d</a>'
    )
    say(session, hostile, hostile)
    stranger = Client()
    rename(owner, session, '"><script>alert(1)</script>')
    accept_message(session, client_id="client-01", text=hostile, user_pk=user.pk, max_queued=5)
    accept_message(session, client_id="client-02", text=hostile, user_pk=user.pk, max_queued=5)
    settings_page = reverse("workspace_settings", args=["garden"])
    return {
        "sign in": stranger.get("/sign-in/"),
        "sign in, wrong": stranger.post("/sign-in/", {"username": hostile, "password": "x"}),
        "link": stranger.get("/sign-in/link/x/"),
        "home": owner.get("/"),
        "home, wrong": owner.post("/workspaces/new/", {"root": hostile, "name": hostile}),
        "workspace": owner.get("/w/garden/", {"q": '"><script>'}),
        "list": owner.get("/w/garden/", headers={"HX-Request": "true"}),
        "settings": owner.get(settings_page),
        "members": owner.get(reverse("workspace_members", args=["garden"])),
        "tools": owner.get(reverse("workspace_tools", args=["garden"])),
        "settings, wrong": owner.post(settings_page, {"name": "", "instructions": hostile}),
        "chat": owner.get(chat(session)),
        "rows": owner.get(chat(session, "?after=seq:0"), headers={"HX-Request": "true"}),
        "turn": owner.get(chat(session, "t/1/")),
        "refused": owner.post(chat(session, "send/"), {"text": ""}),
        "search": owner.get("/search/", {"q": "onerror alert"}),
        "search, wrong": owner.get("/search/", {"q": hostile, "after": hostile, "tool": hostile}),
        "more hits": owner.get(
            "/search/", {"q": "onerror", "cursor": hostile}, headers={"HX-Request": "true"}
        ),
        "find": owner.get(chat(session, "find/"), {"q": "onerror"}),
        "find, in the panel": owner.get(
            chat(session, "find/"), {"q": hostile}, headers={"HX-Request": "true"}
        ),
        "password": owner.get("/password/"),
        "password done": owner.get("/password/done/"),
        "bad cursor": owner.get(chat(session, "?before=<script>")),
        "not found": owner.get("/nothing/"),
        "not allowed": Client(enforce_csrf_checks=True).post("/sign-in/"),
    }


ADDRESSES = {"href", "xlink:href", "src", "action", "formaction", "hx-get", "hx-post", "data"}
CODE = re.compile(r"\s*(javascript:|vbscript:|js:|data:text)", re.I)


class Markup(HTMLParser):
    """A parser that collects the markup that a strict content security policy refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        if tag == "style" or (tag == "script" and "src" not in names):
            self.refused.append(f"<{tag}>")
        for name, value in attrs:
            is_code = CODE.match(value or "") and name in ADDRESSES | {"hx-vals", "hx-headers"}
            if name == "style" or name.startswith(("on", "hx-on")) or is_code:
                self.refused.append(f'<{tag} {name}="{value}">')


POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "font-src": "'self'",
    "connect-src": "'self'",
    "frame-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
    "object-src": "'none'",
    "manifest-src": "'self'",
}

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def test_no_page_holds_inline_script_or_style_and_each_has_the_headers(
    pages: dict[str, HttpResponse],
) -> None:
    expected = {"link": 410, "not found": 404, "not allowed": 403}
    bad = ("home, wrong", "settings, wrong", "refused", "bad cursor", "search, wrong")
    expected |= dict.fromkeys(bad, 400)
    assert {name: response.status_code for name, response in pages.items()} == {
        name: expected.get(name, 200) for name in pages
    }
    for name, response in pages.items():
        markup = Markup()
        markup.feed(response.text)
        assert not markup.refused, name
        rules = response["Content-Security-Policy"].split("; ")
        assert dict(rule.split(" ", 1) for rule in rules) == POLICY, name
        assert {header: response[header] for header in HEADERS} == HEADERS, name


INLINE = re.compile(
    r"""\sstyle\s*=|<style(?! nonce=)|<script(?![^>]*\s(?:src=|type="application/json"))"""
    r"""|\son\w+\s*=|hx-on|["']js:|javascript:""",
    re.I,
)


def test_no_template_holds_inline_script_or_style() -> None:
    templates = [
        *(settings.BASE_DIR / "templates").rglob("*.html"),
        *(settings.BASE_DIR / "conversations").rglob("*.html"),
    ]
    assert len(templates) > 50
    assert [path for path in templates if INLINE.search(path.read_text())] == []


def test_a_folder_of_somebody_elses_workspace_is_refused(owner: Client, roots: Path) -> None:
    theirs = roots / "theirs"
    (theirs / "inner").mkdir(parents=True)
    stranger = User.objects.create_user("stranger")
    create_workspace(root=theirs.resolve(), name="Theirs", owner=stranger)
    for folder in (theirs, theirs / "inner", roots):
        response = create(owner, folder)
        assert response.status_code == 400
        assert "Another workspace already uses this folder" in response.text


def test_the_folder_of_ones_own_workspace_may_hold_another(owner: Client, roots: Path) -> None:
    assert create(owner, roots / "notes").status_code == 302
    (roots / "notes" / "inner").mkdir()
    assert create(owner, roots / "notes" / "inner").status_code == 302


def test_server_data_cannot_become_a_workspace(
    owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = settings.LOOM.data_dir
    (data_dir / "run").mkdir(exist_ok=True)
    monkeypatch.setattr(settings.LOOM, "workspace_roots", [data_dir.parent])
    for folder in (data_dir, data_dir.parent, data_dir / "run"):
        response = create(owner, folder)
        assert "own data" in response.text
