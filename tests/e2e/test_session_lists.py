"""The list of a workspace's sessions in a real browser: filters, bulk actions and updates."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e.accessibility import violations_everywhere
from tests.e2e.conftest import NARROW, Server, long_session, settle, take_both_pictures


def test_sessions_can_be_filtered_and_changed_in_bulk(
    server: Server, open_context: Callable[..., BrowserContext], tmp_path: Path
) -> None:
    uuids = [long_session(server, turns=4, title=f"Bulk {name}") for name in ("B", "a", "C")]
    page = open_context().new_page()
    page.goto(f"{server.url}/w/example/")
    titles = page.locator("#sessions .title")
    page.get_by_placeholder("Filter sessions by title").fill("bulk")
    expect(titles).to_have_count(3)
    page.get_by_label("Order").select_option("By title")
    expect(titles).to_have_text(["Bulk a", "Bulk B", "Bulk C"])
    page.get_by_label("State", exact=True).select_option("Running")
    expect(page.locator("#sessions")).to_contain_text("No sessions match")
    page.get_by_label("State", exact=True).select_option("Any state")
    expect(titles).to_have_count(3)
    titles.first.click()
    expect(page).to_have_url(f"{server.url}/s/{uuids[1]}/")
    page.go_back()
    expect(titles).to_have_text(["Bulk a", "Bulk B", "Bulk C"])
    expect(page.get_by_label("Order")).to_have_value("title")

    bulk = page.locator("#bulk")
    expect(bulk).to_be_hidden()
    page.get_by_label("Select Bulk a", exact=True).check()
    expect(bulk).to_be_visible()
    all_shown = page.locator("[data-pick-all]")
    all_shown.check()
    expect(page.locator("#sessions .pick:checked")).to_have_count(3)
    page.get_by_label("Order").select_option("Last active")
    expect(all_shown).not_to_be_checked()  # no row of the new list is selected
    page.get_by_label("Select Bulk a", exact=True).check()
    all_shown.check()
    settle()
    assert violations_everywhere(page, "session-list") == []
    take_both_pictures(page, "session-list")
    page.set_viewport_size(NARROW)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    take_both_pictures(page, "session-list-narrow")

    with page.expect_download() as download:
        bulk.get_by_role("button", name="Export").click()
    saved = tmp_path / "sessions.jsonl"
    download.value.save_as(saved)
    lines = [json.loads(line) for line in saved.read_text().splitlines()]
    assert {line["uuid"] for line in lines if line["type"] == "session"} == set(uuids)

    bulk.get_by_role("button", name="Delete…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Delete 3 sessions")
    expect(page.get_by_label("Breadcrumb")).not_to_contain_text("Bulk")
    take_both_pictures(page, "delete-several")
    page.get_by_label("Reason").fill("Finished")
    page.get_by_role("button", name="Delete permanently").click()
    expect(page.get_by_text("3 sessions scheduled for deletion.")).to_be_visible()
    expect(page).to_have_url(re.compile("[?&]q=bulk"))
    page.goto(f"{server.url}/w/example/?archived=1&q=bulk")
    expect(titles).to_have_count(3)


def test_a_visible_session_list_shows_changes_of_other_sessions(
    server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    here, other = (long_session(server, turns=2, title=f"Renewed {name}") for name in "AB")
    page = open_context().new_page()
    page.clock.install()

    def rename(title: str) -> None:
        url = f"{server.url}/s/{other}/rename/"
        [token] = [c["value"] for c in page.context.cookies(url) if "csrf" in c["name"]]
        form = {"csrfmiddlewaretoken": token, "title": title}
        assert page.request.post(url, form=form, max_redirects=0).status == 302

    def answer_after_a_minute() -> int:
        is_list = "/w/example/?q="
        with page.expect_response(lambda response: is_list in response.url) as response:
            page.clock.fast_forward(60_000)
        return response.value.status

    page.goto(f"{server.url}/s/{here}/")
    side = page.locator("#sessions")
    titles = page.locator("#sessions .title", has_text="Renewed")
    expect(titles).to_have_text(["Renewed B", "Renewed A"])
    current = side.get_by_role("link", name="Renewed A")
    current.focus()
    rename("Renewed often")
    long_session(server, turns=2, title="Renewed C")
    assert answer_after_a_minute() == 200
    expect(titles).to_have_text(["Renewed C", "Renewed often", "Renewed A"])
    assert answer_after_a_minute() == 304
    # The focus, the only tab stop and the mark of the open session have not changed.
    expect(current).to_be_focused()
    expect(current).to_have_attribute("aria-current", "page")
    expect(side.locator(".session > [tabindex='0']")).to_have_count(1)

    # The list is not renewed while a person uses it.
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    titles.nth(1).hover()
    side.get_by_label("Actions for Renewed often").click()
    page.clock.fast_forward(60_000)
    settle(0.5)
    assert asked == []
    expect(side.get_by_label("New title").nth(1)).to_be_visible()

    # The list page keeps its filter when it is renewed.
    page.goto(f"{server.url}/w/example/")
    page.get_by_placeholder("Filter sessions by title").fill("renewed")
    expect(page.locator("#sessions .title")).to_have_count(3)
    page.keyboard.press("Tab")  # the list is not renewed while a person types
    rename("Renewed again")
    assert answer_after_a_minute() == 200
    expect(titles).to_have_text(["Renewed C", "Renewed again", "Renewed A"])


MANY = """
from pathlib import Path
from django.contrib.auth.models import User
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import create_workspace
root = Path("{root}")
root.mkdir()
owner = User.objects.get(pk=1)
made = create_workspace(root=root, name="Many", slug="many", owner=owner)
for number in range(60):
    print(create_session(made, owner=owner, title=f"Session {{number}}").uuid)
"""
PIN = """
from django.utils import timezone
from conversations.models import Session
titles = [f"Session {{number}}" for number in {numbers}]
found = Session.objects.filter(workspace__slug="many")
found.update(pinned_at=None)
found.filter(title__in=titles).update(pinned_at=timezone.now())
"""
REMOVED = """
from conversations.features.notices.models import SessionView
from conversations.models import ReadingPosition, Session, Workspace
for rows in (ReadingPosition, SessionView):  # the latter if another test asked for notices
    rows.objects.filter(session__workspace__slug="many").delete()
Session.objects.filter(workspace__slug="many").delete()
Workspace.objects.get(slug="many").delete()
"""


@pytest.fixture
def many(server: Server) -> Iterator[list[str]]:
    """Create a workspace with sessions, and yield their addresses, oldest first."""
    code = MANY.format(root=server.folder / "workspaces" / "many")
    made = server.manage("shell", "-v", "0", "-c", code).split()
    yield [f"{server.url}/s/{uuid}/" for uuid in made]
    server.manage("shell", "-v", "0", "-c", REMOVED)


def test_the_open_session_is_visible_and_load_more_keeps_the_focus(
    server: Server, many: list[str], tab: Page
) -> None:
    side = tab.locator("#sessions")
    current = side.locator("[aria-current]")
    more = side.get_by_role("button", name="Load more")
    tab.goto(many[20])
    expect(current).to_contain_text("Session 20")
    expect(current).to_be_in_viewport(ratio=0.9)
    assert not tab.evaluate("scrollX + scrollY + document.querySelector('.chat').scrollTop")

    tab.goto(many[4])
    expect(side.locator("h2")).to_have_text(["This session", "Today"])
    expect(current).to_be_in_viewport(ratio=0.9)
    take_both_pictures(tab, "old-session")
    tab.locator("#transcript").focus()
    tab.keyboard.press("Alt+ArrowUp")  # there is no session before the open one
    tab.keyboard.press("Alt+ArrowDown")
    expect(tab).to_have_url(many[59])

    tab.goto(many[4])
    more.press("Enter")
    expect(side.locator(".title")).to_have_count(60)
    expect(side.locator("h2")).to_have_text(["Today"])
    expect(side.get_by_role("link", name="Session 9")).to_be_focused()
    expect(current).to_have_count(1)
    # The open session is unpinned elsewhere before more sessions are loaded.
    server.manage("shell", "-v", "0", "-c", PIN.format(numbers=[30, 4]))
    tab.goto(many[4])
    expect(side.locator("h2")).to_have_text(["Pinned", "Today"])
    server.manage("shell", "-v", "0", "-c", PIN.format(numbers=[30]))
    more.press("Enter")
    expect(side.locator(".title")).to_have_count(60)
    expect(side.locator("h2")).to_have_text(["Pinned", "Today"])
    server.manage("shell", "-v", "0", "-c", PIN.format(numbers=[]))
    tab.goto(many[0].partition("/s/")[0] + "/w/many/")
    more.press("Enter")
    expect(side.get_by_role("link", name="Session 9")).to_be_focused()
    tab.set_viewport_size(NARROW)
    tab.goto(many[20])
    assert not tab.evaluate("scrollX + scrollY + document.querySelector('.chat').scrollTop")
    tab.get_by_role("button", name="Show sidebar").click()
    expect(current).to_be_in_viewport(ratio=0.9)
    take_both_pictures(tab, "old-session-narrow")
