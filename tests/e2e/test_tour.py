"""The demo model: a first visit and the tour, which needs only its buttons."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.e2e.accessibility import violations_everywhere

from .conftest import Chat, Server, take_picture


@pytest.fixture(scope="module")
def demo_server(make_server: Callable[..., Server]) -> Server:
    """Start a server without a provider key, as on a first start."""
    return make_server(LOOM_DEMO_DELAY="0.005")


def test_a_first_visit_opens_a_chat_with_the_tour_of_the_demo_model(
    demo_server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context(storage_state=None).new_page()
    page.goto(demo_server.link)
    chat, rows = Chat(page, demo_server), page.locator("#rows")
    expect(page.locator(".demo")).to_contain_text("Demo model")
    expect(page.get_by_role("link", name="Connect a model")).to_be_visible()
    take_picture(page, "first-visit")
    chat.ask("table")
    expect(page.locator("#rows table")).to_be_visible()
    page.get_by_role("button", name="Look around").click()
    expect(rows).to_contain_text("Reading asks for no permission")
    chat.wait_idle()
    assert violations_everywhere(page, "tour") == []
    page.get_by_role("button", name="Write a file").click()
    page.get_by_role("button", name="Approve", exact=True).click()
    expect(rows).to_contain_text("can be taken back")
    chat.wait_idle()
    page.get_by_role("link", name="Undo a change").click()
    expect(page.locator("#panel")).to_contain_text("demo-notes.md")
    page.get_by_role("link", name="See what was sent to the model").click()
    expect(page.locator("#panel")).to_contain_text("Latest call")

    page.get_by_role("button", name="Look 300 turns back").click()
    page.get_by_role("button", name="What is the code").click()
    expect(rows.locator("blockquote").last).to_contain_text("opens with 4711")
    chat.wait_idle()
    page.get_by_text("Demo model: try it").click()
    page.reload()
    expect(page.get_by_role("button", name="What is the code")).not_to_be_visible()
    page.goto(demo_server.link)
    expect(page).not_to_have_url(re.compile("link"))
