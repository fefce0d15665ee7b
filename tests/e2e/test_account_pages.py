"""The pages about people, sessions and the installation are accessible.

They are checked narrow and wide, light and dark. To check another page, add its address to
``PAGES``.
"""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.features import collect, merge

from .accessibility import violations_everywhere
from .conftest import NARROW, WIDE, Server

IN_UTC = re.compile(r"\d\d:\d\d UTC")
"""The format of a time for a browser without scripts."""

PAGES = {
    "account": "/account/",
    "preferences": "/account/preferences/",
    "devices": "/account/devices/",
    "data": "/account/data/",
    "tokens": "/account/tokens/",
    "notifications": "/account/notifications/",
    "people": "/people/",
    "person": "/people/1/",
    "groups": "/people/groups/",
    "review": "/review/?queue=all&since=2020-01-01",
    "review-sample": "/review/sample/?n=5&days=30&seed=a&until=2026-03-01",
    "review-search": "/review/search/?q=the&queue=unreviewed",
    "review-session": "/review/s/{story}/t/2/",
    "readers": "/s/{story}/readers/",
    "reason": "/review/reason/?session={story}",
    "audit": "/audit/?before=2100-01-01",
    "settings": "/w/example/settings/",
    "settings-tools": "/w/example/settings/tools/",
    "settings-programs": "/w/example/settings/programs/",
    "members": "/w/example/members/",
} | merge("BROWSER_PAGES")


LONG_NAMES = """
from datetime import timedelta
from django.contrib.auth.models import User
from conversations.archive.audit import AuditOrigin
from conversations.accounts.invitations import create_invitation
from conversations.accounts.people import create_group
from conversations.archive.workspaces import add_group, add_member, get_workspace
found, origin = get_workspace("example"), AuditOrigin(user=User.objects.get(pk=1))
person = User.objects.create_user("constantine-of-" * 5, email="c" * 60 + "@example.org")
add_member(found, user_pk=person.pk, role="member")
group = create_group("Gardeners of the northern valley " * 3, origin=origin)
add_group(found, group=group, role="viewer", origin=origin)
create_invitation(workspace=found, role="member", label="Somebody " * 13,
    lifetime=timedelta(days=7), origin=origin)
"""
"""Creates a member, a group and an invitation with names that do not fit on a line."""


A_READING = """
from conversations.archive.audit import AuditOrigin, session_event, record
from conversations.models import Session
origin = AuditOrigin(name="rita", place="/s/", address="::1", agent="Browser", reason="A complaint")
record(origin, session_event(Session.objects.get(uuid="{story}"), "transcript"))
"""
"""Records that a person who is not a member has read the session."""


@pytest.fixture(scope="session")
def used(server: Server, story: str) -> dict[str, str]:
    """Ask the model, fill every page, and return the values for the pages' addresses."""
    server.manage("send", "--workspace", "example", "Hello")
    scripts = (*collect("BROWSER_STOCK"), LONG_NAMES, A_READING.format(story=story))
    printed = server.manage("shell", "-v", "0", "-c", "\n".join(scripts))
    return dict(line.split("=", 1) for line in printed.splitlines() if line)


IS_CUT = """
() => [...document.querySelectorAll("main .facts > *")].filter((one) =>
  one.getBoundingClientRect().right > one.parentElement.getBoundingClientRect().right + 1
).map(({ innerText }) => innerText)
"""


@pytest.fixture
def long_word(server: Server, used: dict[str, str]) -> Iterator[None]:
    """Give the workspace a name of one long word."""
    rename = "from conversations.models import Workspace; "
    rename += "Workspace.objects.filter(slug='example').update(name='{}')"
    server.manage("shell", "-v", "0", "-c", rename.format("Kapitänsmütze" * 9))
    yield
    server.manage("shell", "-v", "0", "-c", rename.format("Example"))


@pytest.mark.usefixtures("long_word")
def test_account_pages_are_accessible_and_nothing_is_cut_off(
    server: Server,
    story: str,
    used: dict[str, str],
    tab: Page,
) -> None:
    for name, path in PAGES.items():
        shown = tab.goto(server.url + path.format(story=story, **used))
        assert shown is not None, name
        assert shown.ok, name
        assert violations_everywhere(tab, name) == [], name
        assert not tab.get_by_text(IN_UTC).count(), name
        for size in (WIDE, NARROW):
            tab.set_viewport_size(size)
            assert tab.evaluate(IS_CUT) == [], name


def test_a_reviewers_text_survives_a_reload_until_it_is_saved(
    server: Server, story: str, tab: Page
) -> None:
    tab.goto(f"{server.url}/review/s/{story}/")
    of_session = tab.get_by_role("region", name="On the whole session")
    field = of_session.get_by_role("textbox", name="Comment on the session")
    of_session.get_by_text("Note or flag").click()
    field.fill("Long and careful")
    tab.reload()
    expect(field).to_have_value("Long and careful")
    of_session.get_by_role("button", name="Save").click()
    expect(of_session.locator(".remarks")).to_contain_text("Long and careful")
    of_session.get_by_text("Note or flag").click()
    expect(field).to_have_value("")


def test_a_read_operation_can_be_tried_on_the_api_page(
    server: Server, story: str, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context().new_page()
    page.goto(f"{server.url}/api/v1/docs")
    page.locator("#operations-tag-Turns_and_events").click()
    assert violations_everywhere(page, "api") == []
    operation = page.locator("#operations-Turns_and_events-list_turns")
    operation.locator(".opblock-summary").click()
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_placeholder("uuid").fill(story)
    operation.get_by_role("button", name="Execute").click()
    answer = operation.locator(".live-responses-table .response-col_description")
    answer.get_by_text("What is here?").first.wait_for()
