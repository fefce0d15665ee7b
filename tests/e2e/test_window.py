"""The window on the chat page: the line between the rows and the meter below them."""

from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.e2e.accessibility import (
    OF_COLOURS,
    OF_PLACES,
    violations,
    violations_light_and_dark,
)
from tests.e2e.conftest import (
    NARROW,
    WIDE,
    Chat,
    Server,
    settle,
    take_picture,
)
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread


@pytest.fixture
def server(small_server: Server) -> Server:
    return small_server


def outgrow(chat: Chat, wire: WireThread) -> Chat:
    """Ask until the session is longer than its window."""
    for number in range(6):
        wire.enqueue(Scenario(words=240))
        chat.ask(f"Question {number}")
    settle()
    return chat


def line(page: Page) -> Locator:
    return page.locator("#rows > .floor")


def floor_of(page: Page) -> int:
    """Return the turn of the first row after the line."""
    return int(
        page.evaluate("document.querySelector('#rows > .floor ~ .row[data-turn]').dataset.turn")
    )


def test_the_window_line_moves_and_is_the_same_live_and_after_a_reload(
    chat: Chat, wire: WireThread, open_context: Callable[..., BrowserContext]
) -> None:
    page, long_chat = chat.page, outgrow(chat, wire)
    expect(line(page)).to_have_count(1)
    floor = floor_of(page)
    expect(line(page)).to_contain_text(f"Context starts here: {floor - 1} earlier turns")
    take_picture(page, "window-line")
    meter = page.locator("#meter")
    expect(meter).to_contain_text("% of the context")
    live_meter = meter.evaluate("element => element.outerHTML")
    rows = long_chat.rows.count()
    live = long_chat.rows_html()
    page.reload()
    settle()
    assert meter.evaluate("element => element.outerHTML") == live_meter
    long_chat.load("Load older", lambda: long_chat.rows.count() >= rows)
    assert long_chat.rows_html() == live
    meter.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Context", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    expect(meter).to_be_focused()

    for number in range(4):
        wire.enqueue(Scenario(words=240))
        long_chat.ask(f"More {number}")
    settle()
    assert floor_of(page) > floor
    expect(line(page)).to_have_count(1)
    live = long_chat.rows_html()
    page.evaluate("sessionStorage.clear()")
    page.goto(f"{long_chat.server.url}/s/{long_chat.uuid}/?after=seq:0")
    settle()
    newer = page.get_by_role("button", name="Load newer")
    long_chat.load("Load newer", lambda: newer.count() == 0)
    assert long_chat.rows_html() == live

    # The line is accessible and at the same place on every page.
    line(page).scroll_into_view_if_needed()
    assert violations_light_and_dark(page, "window") == []
    page.set_viewport_size(NARROW)
    settle()
    assert violations(page, OF_COLOURS + OF_PLACES) == []
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    take_picture(page, "window-narrow")
    page.set_viewport_size(WIDE)
    floor = floor_of(page)
    for turn in (floor, floor - 1, floor + 1):
        long_chat.open(long_chat.uuid, f"t/{turn}/")
        settle()
        assert floor_of(page) == floor
    page = open_context(java_script_enabled=False).new_page()
    page.goto(f"{long_chat.server.url}/s/{long_chat.uuid}/t/{floor}/")
    expect(line(page)).to_have_count(1)
    line(page).get_by_role("link", name="Context starts here").click()
    expect(page.get_by_role("heading", name="Context", exact=True)).to_be_visible()
