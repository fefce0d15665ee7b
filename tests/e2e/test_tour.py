"""The tour with the demo model, by its buttons alone."""

from collections.abc import Callable

from playwright.sync_api import BrowserContext, expect

from tests.e2e.accessibility import violations_everywhere

from .conftest import Chat, Server


def test_the_tour_shows_the_product_and_stays_closed(
    demo_server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context(storage_state=None).new_page()
    page.goto(demo_server.manage("sign_in_link").strip())
    chat, rows = Chat(page, demo_server), page.locator("#rows")
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
    page.get_by_role("link", name="See what the model was sent").click()
    expect(page.locator("#panel")).to_contain_text("Latest call")

    page.get_by_role("button", name="Look 300 turns back").click()
    page.get_by_role("button", name="What is the code").click()
    expect(rows.locator("blockquote").last).to_contain_text("opens with 4711")
    chat.wait_idle()
    page.get_by_text("Demo model: try it").click()
    page.reload()
    expect(page.get_by_role("button", name="What is the code")).not_to_be_visible()
