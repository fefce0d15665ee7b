"""The sidebar, the menus and the header that all pages share."""

from collections.abc import Callable

from playwright.sync_api import BrowserContext, expect

from .conftest import NARROW, Chat, Server


def test_every_page_is_two_clicks_from_the_chat_and_one_click_back(
    server: Server, chat: Chat
) -> None:
    page = chat.page
    here = page.url
    menu = page.get_by_role("navigation", name="Workspace", exact=True)
    heading = page.get_by_role("heading", level=1)
    title = page.locator(".side .session .title").first
    starts_at = (title.bounding_box() or {})["x"]
    places = menu.get_by_role("link").all_inner_texts()
    assert {"Sessions", "Memory", "Search", "Usage", "Members", "Settings"} <= set(places)
    for name in places[1:]:
        menu.get_by_role("link", name=name, exact=True).click()
        expect(heading).to_contain_text(name)
        assert menu.get_by_role("link").all_inner_texts() == places, name
        assert (title.bounding_box() or {})["x"] == starts_at, name
    for name in ("Tools", "Programs"):
        page.get_by_role("navigation", name="Settings").get_by_role("link", name=name).click()
        expect(heading).to_have_text(name)
    page.get_by_label("Breadcrumb").get_by_role("link", name="Settings").click()
    expect(heading).to_have_text("Settings")
    # The session may not be first in the list, if another is pinned or has newer messages.
    own = page.get_by_role("navigation", name="Sessions").locator(
        f'a[href="{here.removeprefix(server.url)}"]'
    )
    own.click()
    page.wait_for_url(here)

    account = page.locator("details", has=page.get_by_label("Account of"))
    account.locator("summary").click()
    assert account.get_by_role("paragraph").all_inner_texts() == ["You", "Team", "Administration"]
    links = account.get_by_role("link").all_inner_texts()
    assert len(links) == len(set(links)) > 10
    account.get_by_role("link", name="Preferences").click()
    expect(heading).to_have_text("Preferences")
    page.get_by_role("navigation", name="Account").get_by_role("link", name="Devices").click()
    expect(heading).to_have_text("Devices")

    page.set_viewport_size(NARROW)
    expect(page.locator("#side")).not_to_be_visible()
    page.get_by_role("button", name="Show sidebar").click()
    expect(page.locator("#side")).to_be_visible()
    assert page.evaluate("document.activeElement.closest('#side') !== null")
    page.keyboard.press("Escape")
    expect(page.locator("#side")).not_to_be_visible()
    expect(page.get_by_role("button", name="Show sidebar")).to_be_focused()


def test_a_phone_without_javascript_has_a_menu_and_large_targets(
    server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context(java_script_enabled=False, viewport=NARROW, has_touch=True).new_page()
    page.goto(f"{server.url}/w/example/settings/")
    sizes = [
        (min(box["width"], box["height"]), target.inner_text())
        for target in page.locator(".places a, .tabs a, main .btn, main select, .side .btn").all()
        if (box := target.bounding_box())
    ]
    assert len(sizes) > 10
    assert not [text for size, text in sizes if size < 44]
    page.get_by_role("navigation", name="Workspace", exact=True).get_by_text("Members").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Members")
