"""The panel beside the transcript, in a real browser."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.conftest import NARROW, Chat
from tests.e2e.test_pages import violations

SHEET = {"width": 900, "height": 800}


def opener(page: Page) -> Locator:
    return page.get_by_role("link", name="About this session")


def panel(page: Page) -> Locator:
    return page.locator("#panel")


def test_it_is_opened_and_left_by_keyboard(chat: Chat) -> None:
    page = chat.page
    expect(panel(page)).to_be_hidden()
    opener(page).focus()
    page.keyboard.press("Enter")
    expect(panel(page).get_by_role("heading", name="Session state")).to_be_focused()
    expect(opener(page)).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Escape")
    expect(panel(page)).to_be_hidden()
    expect(opener(page)).to_be_focused()
    expect(opener(page)).to_have_attribute("aria-expanded", "false")


def test_its_tabs_are_pages_of_their_own(chat: Chat) -> None:
    page = chat.page
    opener(page).click()
    page.get_by_role("link", name="Window", exact=True).click()
    expect(panel(page).get_by_role("heading", name="Window")).to_be_focused()
    tab = page.get_by_role("link", name="Window", exact=True)
    expect(tab).to_have_attribute("aria-current", "page")
    page.get_by_role("link", name="Open as a page").click()
    expect(page).to_have_url(f"{chat.server.url}/s/{page.url.split('/s/')[1]}")
    expect(page.get_by_role("heading", name="Window")).to_be_visible()


@pytest.mark.parametrize("viewport", [SHEET, NARROW], ids=["sheet", "narrow"])
def test_where_there_is_no_room_it_is_a_sheet(
    open_chat: Callable[..., Chat], viewport: dict[str, int]
) -> None:
    chat = open_chat(viewport=viewport).new()
    page = chat.page
    opener(page).click()
    expect(page.get_by_role("dialog", name="About this session")).to_be_visible()
    expect(page.locator("#main")).to_have_attribute("inert", "")
    assert violations(page) == []
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(chat.message).to_be_visible()
    expect(opener(page)).to_be_focused()
    if viewport is SHEET:
        opener(page).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        page.mouse.click(100, 400)
        expect(page.get_by_role("dialog")).to_be_hidden()


@pytest.mark.noisy
def test_what_cannot_be_loaded_can_be_tried_again(chat: Chat) -> None:
    page = chat.page
    page.route("**/state/", lambda route: route.abort())
    opener(page).click()
    expect(panel(page).get_by_role("alert")).to_contain_text("could not be loaded")
    page.unroute("**/state/")
    panel(page).get_by_role("button", name="Try again").click()
    expect(panel(page).get_by_role("heading", name="Session state")).to_be_visible()
