"""A person accepts an invitation, sets preferences and signs out, in a browser."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

from .conftest import NARROW, Chat, Server

PASSWORD = "correct horse battery"


def test_a_new_member_can_set_preferences_and_sign_out_everywhere(
    server: Server, tab: Page, open_context: Callable[..., BrowserContext], wire: WireThread
) -> None:
    tab.goto(f"{server.url}/w/example/members/")
    tab.get_by_role("button", name="Create link").click()
    link = tab.get_by_label("Link", exact=True).input_value()

    page = open_context(locale="en-GB", storage_state=None).new_page()
    page.goto(link)
    page.get_by_label("Username").fill("eve")
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("Password confirmation").fill(PASSWORD)
    page.get_by_role("button", name="Create account and join").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Example")

    page.goto(f"{server.url}/account/preferences/")
    page.get_by_label("Theme", exact=True).select_option("dark")
    page.get_by_label("Date format").select_option("de")
    page.get_by_label("Times in lists").select_option("exact")
    page.get_by_label("Enter key").select_option("break")
    page.get_by_label("Keyboard shortcuts", exact=True).select_option("none")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved.")).to_be_visible()
    german = re.compile(r"^\d\d\.\d\d\.\d\d, \d\d:\d\d$")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.get_by_role("link", name="Devices").click()
    expect(page.locator(".devices time").first).to_have_text(german)

    chat = Chat(page, server).new()
    page.keyboard.press("Control+k")
    chat.message.fill("two")
    chat.message.press("Enter")
    chat.message.press_sequentially("lines")
    expect(chat.message).to_have_value("two\nlines")
    expect(page.get_by_role("dialog")).to_have_count(0)
    chat.message.fill("/resume")
    chat.message.press("Control+Enter")
    expect(page.get_by_role("dialog", name="Go to")).to_be_visible()
    page.keyboard.press("Escape")
    expect(chat.message).to_have_value("")
    chat.message.fill("two\nlines")
    wire.enqueue(Scenario(text="Yes."))
    chat.message.press("Control+Enter")
    expect(page.locator("#rows")).to_contain_text("Yes.")
    chat.wait_idle()

    with page.expect_response("**/account/choose/") as kept:
        page.get_by_role("button", name="Theme: dark").click()
    assert kept.value.status == 204
    expect(page.get_by_role("button", name="Theme: auto")).to_be_visible()

    other = page.context.new_page()
    other.goto(f"{server.url}/account/preferences/")
    expect(other.get_by_label("Theme", exact=True)).to_have_value("auto")
    other.get_by_role("link", name="Devices").click()
    other.get_by_role("button", name="Sign out everywhere", exact=True).click()
    expect(page.get_by_text("Signed out.")).to_be_visible()


# The options that are wider than their list, beside its arrow.
CUT_OPTIONS = """() => {
  const pen = document.createElement("canvas").getContext("2d");
  return [...document.querySelectorAll("form select")].flatMap((list) => {
    const style = getComputedStyle(list);
    pen.font = style.font;
    const edges = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight) + 20;
    const isCut = (text) => pen.measureText(text).width > list.clientWidth - edges;
    return [...list.options].map(({ text }) => text).filter(isCut);
  });
}"""


@pytest.mark.parametrize("language", ["en-GB", "de-DE"])
def test_the_choices_of_preferences_fit_on_a_phone(
    server: Server, open_context: Callable[..., BrowserContext], language: str
) -> None:
    page = open_context(locale=language, viewport=NARROW).new_page()
    page.goto(f"{server.url}/account/preferences/")
    assert page.evaluate(CUT_OPTIONS) == []
