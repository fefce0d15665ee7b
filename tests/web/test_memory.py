"""Workspace memory: the offer to keep a rule beside a session, and the memory's page."""

from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from conversations.archive.audit import AuditOrigin, readings_of
from conversations.archive.memory import add_entry, list_entries
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import create_workspace
from conversations.models import AuditEntry, MemoryEntry, Session, Workspace

from .conftest import MakePerson, browser_of, flat, say

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}
OFFER = 'role="group" aria-label="Keep'


@pytest.fixture
def ruled(session: Session) -> Session:
    say(session, "All dates must be UTC", "Understood", "I prefer short answers over long ones")
    return session


def panel(browser: Client, session: Session) -> str:
    return flat(browser.get(reverse("session_state", args=[session.uuid])).text)


def keep(browser: Client, session: Session, item: str, scope: str, *, htmx: bool = False) -> object:
    where = reverse("session_state_keep", args=[session.uuid])
    return browser.post(where, {"item": item, "scope": scope}, headers=HTMX if htmx else {})


def texts(workspace: Workspace, user: User) -> list[str]:
    return [entry.text for entry in list_entries(workspace, user.pk)]


def test_the_newest_rule_is_offered_and_the_others_can_be_kept(
    owner: Client, ruled: Session
) -> None:
    page = panel(owner, ruled)
    assert page.count(OFFER) == 1
    assert page.index("short answers") < page.index(OFFER)
    assert "Keep “All dates must be UTC” for the workspace" in page


def test_an_item_is_kept_for_everyone(
    owner: Client, ruled: Session, workspace: Workspace, user: User
) -> None:
    answer = keep(owner, ruled, "r1.0", "workspace", htmx=True)
    assert answer.status_code == 200
    assert 'data-said="Kept for everyone"' in answer.text
    [entry] = list_entries(workspace, user.pk)
    assert (entry.text, entry.owner, entry.session) == ("All dates must be UTC", None, ruled)
    other = create_session(workspace, owner=user)
    page = panel(owner, other)
    assert "All dates must be UTC" in page
    assert f'href="/s/{ruled.uuid}/t/1/"' in page


def test_keeping_an_item_by_plain_form_redirects_to_the_page(
    owner: Client, ruled: Session, workspace: Workspace, user: User
) -> None:
    answer = keep(owner, ruled, "p3.0", "person")
    assert (answer.status_code, answer.url) == (302, reverse("session_state", args=[ruled.uuid]))
    [entry] = list_entries(workspace, user.pk)
    assert entry.owner == user


def test_declined_offer_is_not_repeated(owner: Client, ruled: Session) -> None:
    keep(owner, ruled, "p3.0", "none")
    page = panel(owner, ruled)
    assert page.index("All dates must be UTC") < page.index(OFFER)
    keep(owner, ruled, "r1.0", "none")
    page = panel(owner, ruled)
    assert OFFER not in page
    assert "Keep “All dates must be UTC” for the workspace" in page


def test_kept_item_is_not_offered_again(owner: Client, ruled: Session) -> None:
    keep(owner, ruled, "p3.0", "person")
    keep(owner, ruled, "r1.0", "workspace")
    page = panel(owner, ruled)
    assert OFFER not in page
    assert "session_state_keep" not in page
    assert reverse("session_state_keep", args=[ruled.uuid]) not in page


def test_member_cannot_keep_an_item_for_everyone(
    ruled: Session, workspace: Workspace, user: User, make_person: MakePerson
) -> None:
    browser = browser_of(make_person("member"))
    assert OFFER not in panel(browser, ruled)  # neither their session nor their workspace
    assert keep(browser, ruled, "r1.0", "workspace").status_code == 403
    assert keep(browser, ruled, "r1.0", "person").status_code == 400
    assert texts(workspace, user) == []


def test_viewer_cannot_keep_an_item(ruled: Session, make_person: MakePerson) -> None:
    browser = browser_of(make_person("viewer"))
    assert OFFER not in panel(browser, ruled)
    assert keep(browser, ruled, "r1.0", "person").status_code == 403


@pytest.mark.parametrize(("item", "scope"), [("r9.0", "person"), ("c1", "person"), ("r1.0", "all")])
def test_keeping_an_unknown_item_or_scope_is_an_error(
    owner: Client, ruled: Session, item: str, scope: str
) -> None:
    answer = keep(owner, ruled, item, scope, htmx=True)
    assert answer.status_code == 400
    assert 'role="alert"' in answer.text


def test_query_count_of_the_panel_is_independent_of_the_memory(
    owner: Client, ruled: Session, workspace: Workspace, user: User
) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            panel(owner, ruled)
        return len(queries)

    add(workspace, user, "Never push to main", scope="person")
    few = count()
    for number in range(9):
        add(workspace, user, f"Rule {number} of the garden", scope="person")
        add(workspace, user, f"Preference {number} of the house")
    assert count() == few


def add(workspace: Workspace, by: User, text: str, *, scope: str = "workspace") -> MemoryEntry:
    origin = AuditOrigin(user=by)
    return add_entry(workspace, kind="rule", text=text, scope=scope, by=by, origin=origin)


def memory(browser: Client, workspace: Workspace) -> str:
    return flat(browser.get(reverse("workspace_memory", args=[workspace.slug])).text)


def post(browser: Client, name: str, workspace: Workspace, *where: object, **data: str) -> object:
    return browser.post(reverse(name, args=[workspace.slug, *where]), data)


def test_memory_page_lists_adds_edits_and_removes_entries(
    owner: Client, workspace: Workspace, user: User
) -> None:
    assert memory(owner, workspace).count("Nothing yet") == 2
    data = {"kind": "preference", "text": "Short answers", "scope": "workspace"}
    assert post(owner, "workspace_memory_add", workspace, **data).status_code == 302
    [entry] = list_entries(workspace, user.pk)
    page = memory(owner, workspace)
    assert "Short answers" in page
    assert f"kept by {user}" in page
    post(owner, "workspace_memory_edit", workspace, entry.uuid, text="Very short answers")
    assert texts(workspace, user) == ["Very short answers"]
    post(owner, "workspace_memory_remove", workspace, entry.uuid)
    assert texts(workspace, user) == []


def test_refused_entry_keeps_its_text_in_the_form(owner: Client, workspace: Workspace) -> None:
    data = {"kind": "preference", "text": "x" * 200, "scope": "workspace"}
    page = post(owner, "workspace_memory_add", workspace, **data)
    assert page.status_code == 400
    assert "Enter 1 to 160 characters" in page.text
    assert "x" * 200 in page.text


def test_member_reads_common_entries_and_changes_only_their_own(
    workspace: Workspace, user: User, make_person: MakePerson
) -> None:
    common, own = add(workspace, user, "Use tabs"), add(workspace, user, "Mine", scope="person")
    browser = browser_of(make_person("member"))
    page = memory(browser, workspace)
    assert "Use tabs" in page
    assert "Mine" not in page
    assert reverse("workspace_memory_edit", args=[workspace.slug, common.uuid]) not in page
    for name in ("workspace_memory_edit", "workspace_memory_remove"):
        assert post(browser, name, workspace, common.uuid, text="x").status_code == 403
        assert post(browser, name, workspace, own.uuid, text="x").status_code == 404
    data = {"kind": "rule", "text": "Theirs"}
    assert (
        post(browser, "workspace_memory_add", workspace, **data, scope="workspace").status_code
        == 403
    )
    assert (
        post(browser, "workspace_memory_add", workspace, **data, scope="person").status_code == 302
    )
    assert texts(workspace, user) == ["Use tabs", "Mine"]


def test_an_entry_of_another_workspace_is_not_found(
    owner: Client, workspace: Workspace, user: User
) -> None:
    entry = add(workspace, user, "Use tabs")
    other = create_workspace(root=Path(workspace.root), name="Other", owner=user)
    assert post(owner, "workspace_memory_remove", other, entry.uuid).status_code == 404
    assert texts(workspace, user) == ["Use tabs"]


def test_reviewers_reading_of_the_memory_page_is_recorded(
    owner: Client,
    ruled: Session,
    workspace: Workspace,
    make_person: MakePerson,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep(owner, ruled, "r1.0", "workspace")
    keep(owner, ruled, "p3.0", "workspace")
    assert memory(owner, workspace).count("from <a") == 2
    assert not readings_of(ruled.uuid)
    monkeypatch.setattr(settings.LOOM, "review_reason", "required")
    entries = AuditEntry.objects.count()
    reviewer = browser_of(make_person("reviewer"))
    where = reverse("workspace_memory", args=[workspace.slug])
    asked = reviewer.get(where)
    assert asked.status_code == 403
    assert "All dates must be UTC" not in asked.text
    assert AuditEntry.objects.count() == entries
    data = {"reason": "Report 7", "session": str(ruled.uuid), "covers": "session"}
    reviewer.post(reverse("review_reason"), data)
    assert "All dates must be UTC" in reviewer.get(where).text
    [entry] = readings_of(ruled.uuid)
    assert (entry.action, entry.reason, entry.place) == ("part", "Report 7", where)


def test_reviewers_reading_of_memory_in_another_session_is_recorded(
    owner: Client, ruled: Session, workspace: Workspace, user: User, make_person: MakePerson
) -> None:
    keep(owner, ruled, "r1.0", "workspace")
    other = create_session(workspace, owner=user)
    for person, read in ((make_person("member"), []), (make_person("reviewer"), ["part"])):
        assert "All dates must be UTC" in panel(browser_of(person), other)
        assert [entry.action for entry in readings_of(ruled.uuid)] == read
