"""Commands and file names in the composer, the palette and the list of keys.

The tests use keyboard and mouse, and wide and narrow windows.
"""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.e2e.accessibility import (
    marks_unseen_in_forced_colours,
    violations,
    violations_everywhere,
    violations_light_and_dark,
)
from tests.e2e.conftest import NARROW, Chat, Server, long_session, take_picture
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread


def choices(page: Page) -> Locator:
    return page.get_by_role("listbox", name="Commands and files").get_by_role("option")


def chosen(page: Page) -> str:
    """Return the text of the option that screen readers announce as chosen."""
    found = page.evaluate(
        "document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))"
        "?.innerText"
    )
    return re.sub(r"\s+", " ", found or "")


def palette(page: Page) -> Locator:
    return page.get_by_role("dialog", name="Go to")


def sent(wire: WireThread) -> int:
    return len(wire.server.requests)


def test_commands_can_be_found_and_executed_by_keyboard(chat: Chat, wire: WireThread) -> None:
    page = chat.page
    wire.enqueue(Scenario(text="Yes."))
    chat.ask("Plant the beans")
    asked = sent(wire)
    chat.message.press("/")
    expect(choices(page)).to_have_count(10)
    assert chosen(page).startswith("/help")
    chat.message.press("ArrowUp")
    assert chosen(page).startswith("/export")
    assert marks_unseen_in_forced_colours(page) == []
    expect(page.get_by_text("10 choices")).to_be_attached()
    chat.message.press_sequentially("ren")
    expect(choices(page)).to_have_text([re.compile("^/rename")])
    chat.message.press("Tab")
    expect(chat.message).to_have_value("/rename ")
    chat.message.press_sequentially("The bean plan")
    chat.message.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("The bean plan")
    expect(page).to_have_title(re.compile("The bean plan"))
    expect(chat.message).to_have_value("")

    chat.message.press_sequentially("/model haiku-5")
    expect(choices(page)).to_have_text([re.compile("claude-haiku-5-5")])
    chat.message.press("Enter")
    expect(page.get_by_label("Model", exact=True)).to_have_value("claude-haiku-5-5")
    expect(page.get_by_text(re.compile("^Model: ")).first).to_be_visible()
    # Add the button that the page shows beside a menu of more than eight models.
    page.evaluate(
        """() => document.querySelector(".under").insertAdjacentHTML(
            "beforeend", '<button type="button" data-action="models">Find a model</button>')"""
    )
    page.get_by_role("button", name="Find a model").click()
    field = page.get_by_role("combobox", name="/model model")
    options = page.get_by_role("dialog", name="Go to").get_by_role("option")
    expect(options.first).to_contain_text("1M tokens")
    take_picture(page, "find-model")
    field.press_sequentially("sonnet")
    expect(options.first).to_contain_text("per million")
    field.press("Enter")
    expect(page.get_by_label("Model", exact=True)).to_have_value("claude-sonnet-5-5")

    chat.message.fill("/undo")
    chat.message.press("Enter")
    expect(page.get_by_text("No files were changed in this session.").first).to_be_visible()

    chat.message.press_sequentially("/exp")
    chat.message.press("Enter")
    expect(choices(page).first).to_contain_text("Markdown")
    with page.expect_download() as download:
        chat.message.press("Enter")
    assert re.fullmatch(r"the-bean-plan-[0-9a-f]{8}\.md", download.value.suggested_filename)
    assert "Plant the beans" in download.value.path().read_text()

    chat.message.press_sequentially("/comp")
    chat.message.press("Escape")
    expect(choices(page)).to_have_count(0)
    expect(chat.message).to_have_value("/comp")
    expect(chat.rows.filter(has_text="/")).to_have_count(0)
    assert sent(wire) == asked
    before = page.url
    chat.message.fill("/new")
    chat.message.press("Enter")
    page.wait_for_url(lambda url: url != before)
    expect(chat.message).to_have_value("")


@pytest.mark.noisy  # the browser reports the failed request
def test_an_unknown_command_can_be_sent_as_a_message(chat: Chat, wire: WireThread) -> None:
    page = chat.page
    chat.send("/renam Beans")
    problem = page.get_by_role("alert")
    expect(problem).to_contain_text("Unknown command /renam. Did you mean /rename?")
    expect(chat.message).to_have_value("/renam Beans")
    assert sent(wire) == 0
    wire.enqueue(Scenario(text="I see."))
    problem.get_by_role("button", name="Send as a message").click()
    expect(chat.rows.first).to_contain_text("/renam Beans")
    expect(chat.message).to_have_value("")
    expect(problem).to_be_hidden()
    chat.wait_idle()
    wire.enqueue(Scenario(text="A table of names."))
    chat.ask("/etc/hosts is what?")
    assert sent(wire) == 2
    # The sign-in page is not taken for the text of a message.
    page.context.clear_cookies()
    page.locator('[data-event-type="user_message"]').last.hover()
    page.get_by_role("button", name="Edit").last.click()
    expect(problem).to_have_text("The text could not be loaded. Try again.")
    expect(page.locator("#rows textarea")).to_have_count(0)


def test_clear_only_hides_rows_and_history_loads_older_rows(
    server: Server, open_chat: Callable[..., Chat], wire: WireThread
) -> None:
    chat = open_chat().open(long_session(server, turns=120)).wait_connected()
    page = chat.page
    row = page.locator("[data-seq='120']")
    expect(row).to_be_visible()
    chat.send("/clear")
    expect(row).to_be_hidden()
    expect(page.get_by_text("Cleared from view.").first).to_be_visible()
    expect(page.locator("#rows > .day")).to_be_hidden()
    wire.enqueue(Scenario(text="Still here."))
    chat.ask("And now?")
    expect(page.locator("#rows")).to_contain_text("Still here.")
    take_picture(page, "commands-cleared")
    assert violations(page, within="#rows") == []
    assert page.locator("[data-seq='71']").count() == 1  # no rows were loaded meanwhile
    assert page.locator("[data-seq='70']").count() == 0
    page.get_by_role("button", name="Load older").click()
    expect(row).to_be_visible()
    chat.send("/clear")
    expect(row).to_be_hidden()
    page.reload()
    expect(row).to_be_visible()
    chat.wait_connected().send("/history")
    expect(page.locator("[data-seq='70']")).to_be_attached()
    expect(chat.transcript).to_be_focused()
    chat.send("/history number 33")
    expect(page.get_by_role("searchbox").last).to_have_value("number 33")
    expect(page.locator("#panel .hit").first).to_contain_text("Row number 33")


def test_file_names_key_help_and_commands_of_archived_sessions_work(
    chat: Chat, server: Server
) -> None:
    folder = server.folder / "workspaces" / "example"
    (folder / "src").mkdir(exist_ok=True)
    (folder / "src" / "bean_plan.py").write_text("")
    (folder / "src" / "two words.md").write_text("")
    page = chat.page
    chat.message.press_sequentially("Look at @beapl")
    expect(choices(page)).to_have_text(["src/bean_plan.py"])
    assert chosen(page) == "src/bean_plan.py"
    take_picture(page, "commands-files")
    assert violations(page, within="#composer, [role=listbox]") == []
    chat.message.press("Tab")
    expect(chat.message).to_have_value("Look at @src/bean_plan.py ")
    chat.message.press_sequentially("and @words")
    choices(page).first.click()
    expect(chat.message).to_have_value('Look at @src/bean_plan.py and @"src/two words.md" ')
    expect(chat.message).to_be_focused()
    chat.message.press_sequentially("by ann@example @zzzzzz")
    expect(page.get_by_text("No matching files.").first).to_be_visible()
    expect(choices(page)).to_have_count(0)

    # The keys are listed, and single-letter keys can be turned off.
    chat.message.fill("")
    chat.message.press("/")
    expect(choices(page)).to_have_count(10)
    assert violations_everywhere(page, "commands", within="#composer, [role=listbox]") == []
    choices(page).first.click()
    dialog = page.get_by_role("dialog", name="Commands and keyboard shortcuts")
    expect(dialog).to_be_visible()
    expect(chat.message).to_have_value("")
    assert violations_everywhere(page, "help", within="dialog") == []
    dialog.get_by_label("Single-letter shortcuts").uncheck()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    chat.transcript.focus()
    page.keyboard.press("?")
    page.keyboard.press("/")
    expect(dialog).to_be_hidden()
    expect(chat.transcript).to_be_focused()
    page.get_by_role("link", name="Commands and keyboard shortcuts").click()
    dialog.get_by_label("Single-letter shortcuts").check()
    dialog.get_by_role("button", name="Close").click()
    chat.transcript.focus()
    page.keyboard.press("/")
    expect(chat.message).to_be_focused()
    expect(chat.message).to_have_value("")

    # An archived session, which can only be read, has commands that change nothing.
    page.get_by_label("Actions for this session").click()
    page.get_by_role("button", name="Archive").click()
    expect(page.get_by_text("This session is archived.")).to_be_visible()
    chat.wait_connected()
    page.keyboard.press("Control+k")
    field = palette(page).get_by_role("combobox")
    field.press_sequentially("/undo")
    field.press("Enter")
    expect(page.get_by_text("No files were changed in this session.").first).to_be_visible()
    page.keyboard.press("Control+k")
    field.press_sequentially("/export")
    field.press("Enter")
    with page.expect_download() as download:
        field.press("Enter")
    assert download.value.suggested_filename.startswith("session-")


def test_the_palette_finds_sessions_commands_and_pages_on_every_page(
    server: Server, chat: Chat, wire: WireThread
) -> None:
    uuid = long_session(server, turns=2, title="Quinces in spring")
    page = chat.page
    chat.message.fill("a draft")
    page.keyboard.press("Control+k")
    expect(palette(page)).to_be_visible()
    field = palette(page).get_by_role("combobox")
    expect(field).to_be_focused()
    options = palette(page).get_by_role("option")
    expect(options.filter(has_text="Quinces in spring")).to_be_visible()
    page.route(re.compile("q=dahl"), lambda route: None)  # the response does not arrive
    field.press_sequentially("dahl")
    expect(options).to_have_count(0)
    field.press("Enter")
    expect(palette(page)).to_be_visible()
    field.fill("")
    field.press_sequentially("quin")
    expect(options).to_have_text([re.compile("Quinces in spring")])
    assert violations_light_and_dark(page, "palette-wide", within="dialog") == []
    page.emulate_media(color_scheme="light")
    field.press("Escape")
    expect(palette(page)).to_be_hidden()
    expect(chat.message).to_be_focused()

    page.keyboard.press("Control+k")
    field.press_sequentially("/ren")
    field.press("Enter")
    expect(field).to_have_attribute("placeholder", "/rename title")
    field.press_sequentially("From the palette")
    composes = {"bubbles": True, "isComposing": True}
    field.dispatch_event("keydown", {"key": "Enter", **composes})
    field.dispatch_event("keydown", {"key": "Enter", "bubbles": True, "keyCode": 229})
    field.dispatch_event("keydown", {"key": "Escape", **composes})
    expect(palette(page)).to_be_visible()
    expect(field).to_have_value("From the palette")
    field.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("From the palette")
    expect(chat.message).to_have_value("a draft")

    # After Esc in an argument, the sessions are again those of the emptied field.
    page.keyboard.press("Control+k")
    with page.expect_response(re.compile("q=rename")):
        field.press_sequentially("rename")
    field.press("Enter")
    expect(field).to_have_attribute("placeholder", "/rename title")
    field.press("Escape")
    expect(options.filter(has_text="From the palette")).to_be_visible()
    field.press("Escape")
    expect(palette(page)).to_be_hidden()

    page.keyboard.press("Control+k")
    field.press_sequentially("context")
    expect(options.first).to_contain_text("Context")
    options.first.click()
    expect(page.locator("#panel-body")).to_contain_text("Context")

    chat.message.fill("/resume quin")
    chat.message.press("Enter")
    expect(options).to_have_count(1)
    field.press("Enter")
    page.wait_for_url(f"**/s/{uuid}/")
    assert sent(wire) == 0

    # The palette works on every page and in a narrow window.
    page.set_viewport_size(NARROW)
    page.goto(f"{server.url}/search/")
    page.keyboard.press("Control+k")
    expect(palette(page)).to_be_visible()
    field.press_sequentially("settings of")
    assert violations_light_and_dark(page, "palette-narrow", within="dialog") == []
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    field.press("Enter")
    page.wait_for_url("**/w/example/settings/")
    page.keyboard.press("Control+k")
    field.press_sequentially("new session in")
    field.press("Enter")
    page.wait_for_url("**/s/**")
    chat.wait_connected()

    # Text that was typed into a closed palette does not reach the next one.
    page.keyboard.press("Control+k")
    expect(field).to_be_focused()
    page.clock.install()
    page.clock.pause_at(page.evaluate("Date.now() + 1000"))  # the list waits for a pause in typing
    field.press_sequentially("summer")
    field.press("Escape")
    held: list[Route] = []
    page.route(re.compile("/palette/"), lambda route: held.append(route))
    with page.expect_request(re.compile("/palette/")):
        page.keyboard.press("Control+k")
    page.clock.run_for(1000)
    for route in held:
        route.continue_()
    expect(palette(page)).to_be_visible()
    expect(field).to_have_value("")
    assert len(held) == 1
