"""The panel beside the transcript, in a real browser."""

import re
from collections.abc import Callable
from uuid import uuid4

import pytest
from playwright.sync_api import APIResponse, Locator, Page, Route, expect

from tests.e2e.accessibility import (
    marks_unseen_in_forced_colours,
    violations,
    violations_everywhere,
)
from tests.e2e.conftest import NARROW, WIDE, Chat, Server, long_session, settle, take_picture
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

SHEET = {"width": 900, "height": 800}


def opener(page: Page) -> Locator:
    return page.get_by_role("link", name="About this session")


def panel(page: Page) -> Locator:
    return page.locator("#panel")


def test_the_panel_works_by_keyboard_and_is_a_sheet_in_narrow_windows(
    chat: Chat,
) -> None:
    """Its tabs can also be opened as pages, and a rule can be kept for the workspace."""
    page, here = chat.page, chat.page.url
    expect(panel(page)).to_be_hidden()
    opener(page).focus()
    page.keyboard.press("Enter")
    expect(panel(page).get_by_role("heading", name="Session state")).to_be_focused()
    expect(opener(page)).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Escape")
    expect(panel(page)).to_be_hidden()
    expect(opener(page)).to_be_focused()
    expect(opener(page)).to_have_attribute("aria-expanded", "false")
    opener(page).click()
    page.get_by_role("link", name="Context", exact=True).click()
    expect(panel(page).get_by_role("heading", name="Context")).to_be_focused()
    tab = page.get_by_role("link", name="Context", exact=True)
    expect(tab).to_have_attribute("aria-current", "page")
    assert marks_unseen_in_forced_colours(page) == []
    page.get_by_role("link", name="Open as a page").click()
    expect(page).to_have_url(f"{chat.server.url}/s/{page.url.split('/s/')[1]}")
    expect(page.get_by_role("heading", name="Context")).to_be_visible()

    # In a narrow window, the panel is a sheet.
    page.set_viewport_size(SHEET)
    page.goto(here)
    for viewport in (SHEET, NARROW):
        page.set_viewport_size(viewport)
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
            page.reload()

    # A rule can be kept for the workspace by keyboard.
    page.set_viewport_size(WIDE)
    page.reload()
    chat.ask("Never push to main without a review")
    opener(page).click()
    offer = panel(page).get_by_role("group", name="for the workspace?", exact=False)
    expect(offer).to_be_visible()
    assert violations(page, within="#panel") == []
    offer.get_by_role("button", name="Keep for me").focus()
    page.keyboard.press("Enter")
    expect(offer).to_have_count(0)
    expect(panel(page).get_by_role("heading", name="Session state")).to_be_focused()
    chat.new()
    opener(page).click()
    expect(panel(page).get_by_role("heading", name="Workspace memory")).to_be_visible()
    panel(page).get_by_role("link", name="Workspace memory").click()
    page.get_by_role("button", name="Remove “").click()
    expect(page.get_by_text("Removed.")).to_be_visible()
    assert violations_everywhere(page, "memory") == []


@pytest.fixture
def decided(chat: Chat, wire: WireThread) -> Chat:
    """Open the state of a session that has a decision and a rule."""
    wire.enqueue(Scenario(text="Understood."))
    chat.ask("We use tabs for indentation.\n\nNever commit to main.")
    opener(chat.page).click()
    expect(panel(chat.page).get_by_role("heading", name="Decisions")).to_be_visible()
    return chat


def item(page: Page, text: str, kind: str = "Decisions") -> Locator:
    items = panel(page).get_by_role("region", name=kind).get_by_role("listitem")
    return items.filter(has_text=text)


def test_state_items_can_be_pinned_reworded_removed_and_restored(
    decided: Chat,
) -> None:
    page = decided.page
    item(page, "tabs").get_by_role("button", name="Pin").first.focus()
    page.keyboard.press("Enter")
    unpin = item(page, "tabs").get_by_role("button", name="Unpin").first
    expect(unpin).to_be_visible()
    expect(item(page, "tabs").get_by_text("Pinned")).to_be_visible()
    settle(0.6)  # wait for the row of the change and the update of the panel
    # A double click on "Edit" opens the editor and presses no other button.
    item(page, "tabs").get_by_label("Edit").first.dblclick()
    item(page, "tabs").get_by_role("button", name="Cancel").click()
    settle(0.6)
    item(page, "tabs").get_by_label("Edit").first.click()
    field = item(page, "tabs").get_by_role("textbox", name="Wording")
    expect(field).to_be_focused()
    take_picture(page, "state-edit")
    field.fill("Spaces, two of them")
    page.get_by_role("button", name="Save").click()
    expect(item(page, "Spaces, two")).to_contain_text("reworded")
    item(page, "Spaces, two").get_by_role("button", name="Remove").click()
    expect(panel(page).get_by_text("Removed", exact=False).first).to_be_visible()
    expect(page.locator("#rows")).to_contain_text("Decision removed: Spaces, two of them")
    panel(page).locator("#struck summary").click()
    settle(0.6)  # wait for the row of the change and the update of the panel
    panel(page).get_by_role("button", name="Restore").click()
    expect(item(page, "Spaces, two").get_by_role("button", name="Remove")).to_be_visible()
    settle()
    live = decided.rows_html()
    page.reload()
    settle()
    assert decided.rows_html() == live
    # A link to a turn that is on the page does not leave the page.
    opener(page).click()
    address = page.url
    item(page, "main", "Rules").get_by_role("link", name="Turn 1").click()
    expect(page.locator('#rows > [data-turn="1"]')).to_be_focused()
    assert page.url == address

    # A late response does not hide a newer change.
    expect(item(page, "Spaces, two").get_by_text("Pinned")).to_have_count(0)
    late: list[tuple[Route, APIResponse]] = []

    def hold_first(route: Route) -> None:
        if late:
            route.continue_()
        else:
            late.append((route, route.fetch()))

    page.route("**/state/edit/", hold_first)
    item(page, "Spaces, two").get_by_role("button", name="Pin").first.click()
    item(page, "main", "Rules").get_by_role("button", name="Remove").first.click()
    page.wait_for_timeout(600)  # unlike a sleep, this lets the routes answer
    route, response = late[0]
    route.fulfill(response=response)
    settle(0.3)
    expect(item(page, "Spaces, two").get_by_text("Pinned")).to_be_visible()
    expect(panel(page).locator("#struck summary")).to_be_visible()

    panel(page).locator("#struck summary").click()
    settle()
    assert violations_everywhere(page, "state", within="#panel") == []


@pytest.mark.noisy  # the browser reports the failed requests
def test_the_panel_follows_the_session_and_keeps_unsaved_text(
    decided: Chat, wire: WireThread
) -> None:
    page = decided.page
    item(page, "tabs").get_by_label("Edit").first.click()
    field = item(page, "tabs").get_by_role("textbox", name="Wording")
    field.fill("half a thought")
    wire.enqueue(Scenario(text="Noted."))
    decided.ask("We decided to plant beans.")
    settle(0.6)
    expect(field).to_have_value("half a thought")
    field.focus()
    page.keyboard.press("Escape")
    expect(item(page, "plant beans").first).to_be_visible()
    expect(panel(page)).to_be_visible()

    # Switching to another tab of the panel does not lose the text.
    item(page, "tabs").get_by_label("Edit").first.click()
    field.fill("half a thought")
    page.get_by_role("link", name="Context", exact=True).click()
    expect(panel(page).get_by_role("heading", name="Context")).to_be_focused()
    page.get_by_role("link", name="State", exact=True).click()
    expect(field).to_have_value("half a thought")
    item(page, "tabs").get_by_role("button", name="Cancel").click()
    page.get_by_role("link", name="Context", exact=True).click()
    expect(panel(page).get_by_role("heading", name="Context")).to_be_focused()
    page.get_by_role("link", name="State", exact=True).click()
    item(page, "tabs").get_by_label("Edit").first.click()
    expect(field).to_have_value(re.compile("tabs"))
    field.fill("Spaces, two of them")
    [cookie] = [one for one in page.context.cookies() if one["name"] == "loom_session"]
    page.context.clear_cookies(name="loom_session")
    page.get_by_role("button", name="Save").click()
    expect(panel(page).get_by_role("alert")).to_contain_text("You are signed out.")
    expect(field).to_have_value("Spaces, two of them")
    page.context.add_cookies([cookie])
    page.get_by_role("button", name="Save").click()
    expect(item(page, "Spaces, two")).to_contain_text("reworded")
    expect(panel(page).locator("[data-edit][open]")).to_have_count(0)
    settle(0.6)  # wait for the row of the change and the update of the panel

    # A change that fails does not lose the text, either.
    item(page, "Spaces, two").get_by_label("Edit").first.click()
    field = item(page, "Spaces, two").get_by_role("textbox", name="Wording")
    field.fill("x" * 160)
    page.route("**/state/edit/", lambda route: route.abort())
    page.get_by_role("button", name="Save").click()
    expect(panel(page).get_by_role("alert")).to_be_visible()
    expect(field).to_have_value("x" * 160)
    page.unroute("**/state/edit/")
    field.evaluate("element => element.removeAttribute('maxlength')")
    field.fill("x" * 161)
    page.get_by_role("button", name="Save").click()
    expect(panel(page).get_by_role("alert")).to_contain_text("at most 160 characters")
    expect(panel(page).get_by_role("textbox", name="Wording")).to_have_value("x" * 161)

    # A tab that could not be loaded can be requested again.
    page.reload()
    page.route("**/state/", lambda route: route.abort())
    opener(page).click()
    expect(panel(page).get_by_role("alert")).to_contain_text("could not be loaded")
    page.unroute("**/state/")
    panel(page).get_by_role("button", name="Try again").click()
    expect(panel(page).get_by_role("heading", name="Session state")).to_be_visible()


@pytest.fixture
def looked(chat: Chat, wire: WireThread) -> Chat:
    """Return a chat with an answer of several model calls, one of which failed."""
    wire.enqueue(
        Scenario(text="I look.", tools=(ToolCall(name="look", input={"path": "a.py"}),)),
        Scenario(status=529, retry_after="0", times=1, text="A **bean** field."),
    )
    chat.ask("What is in a.py?")
    return chat


def test_a_model_request_opens_from_an_answer_and_follows_new_calls(
    looked: Chat, wire: WireThread
) -> None:
    page, uuid = looked.page, looked.uuid
    link = page.get_by_role("link", name="Model request").last
    link.focus()
    page.keyboard.press("Enter")
    shown = panel(page)
    expect(shown.get_by_role("heading", name="Model request")).to_be_focused()
    expect(shown.get_by_text("and identical to what was sent")).to_be_visible()
    expect(shown.get_by_role("listitem")).to_have_count(3)
    expect(shown.get_by_text("failed: The provider is overloaded.")).to_be_visible()
    take_picture(page, "call-wide")
    shown.get_by_role("link", name="View full request").click()
    expect(shown.get_by_role("heading", name="Full request")).to_be_focused()
    first = shown.locator("#text-1")
    first.locator("summary").click()
    expect(first).to_contain_text("What is in a.py?")
    take_picture(page, "text-wide")
    page.keyboard.press("Escape")
    expect(shown).to_be_hidden()
    expect(link).to_be_focused()

    page.locator("#meter").click()
    expect(shown.get_by_text("Latest call")).to_be_visible()
    calls = shown.get_by_role("region", name="Calls", exact=True).get_by_role("listitem")
    expect(calls).to_have_count(3)
    wire.enqueue(Scenario(text="Yes."))
    looked.ask("And beans?")
    expect(calls).to_have_count(4)
    expect(shown.get_by_text("Latest call, for turn 6")).to_be_visible()
    expect(shown.get_by_text("and identical to what was sent")).to_be_visible()
    assert violations_everywhere(page, "panel-window", within="#panel") == []
    page.goto(f"{looked.server.url}/s/{uuid}/calls/6/")
    assert violations_everywhere(page, "page-call") == []
    page.get_by_role("link", name="View full request").click()
    for summary in page.locator("details.text summary").all():
        summary.click()
    assert violations_everywhere(page, "page-text") == []


def test_the_outline_links_to_messages_turns_and_local_days(
    server: Server, open_chat: Callable[..., Chat]
) -> None:
    page = open_chat(timezone_id="Europe/Athens").page
    uuid = long_session(server, turns=500)
    page.goto(f"{server.url}/s/{uuid}/")
    opener(page).click()
    page.get_by_role("link", name="Outline", exact=True).click()
    entries = panel(page).get_by_role("listitem")
    expect(entries).to_have_count(100)
    expect(entries.last).to_contain_text("Row number 499")
    settle()
    assert violations_everywhere(page, "outline", within="#panel") == []
    panel(page).get_by_role("link", name="Earlier messages").press("Enter")
    expect(entries.last).to_contain_text("Row number 299")
    entries.get_by_role("link", name="Row number 151").press("Enter")
    expect(page).to_have_url(re.compile("/t/151/$"))
    expect(page.locator('#rows [data-turn="151"]')).to_be_in_viewport()
    opener(page).click()
    page.get_by_role("link", name="Outline", exact=True).click()
    panel(page).get_by_label("Turn").fill("77")
    page.keyboard.press("Enter")
    expect(page.locator('#rows [data-turn="77"]')).to_be_in_viewport()
    page.goto(f"{server.url}/s/{uuid}/outline/")
    page.get_by_label("Day").fill("2020-02-02")
    page.get_by_role("button", name="Go").click()
    expect(page).to_have_url(re.compile("/t/1/$"))

    # A day begins at the reader's midnight. In UTC it would begin with the third turn, in Tokyo
    # with the first.
    uuid = str(uuid4())
    lines: list[dict[str, object]] = [
        {"type": "session", "uuid": uuid, "workspace": "example", "title": "Two nights"}
    ]
    for number, hour in enumerate(("20", "22", "23"), 1):
        at = f"2026-03-01T{hour}:30:00+00:00"
        turn = {"type": "turn", "number": number, "role": "user", "created_at": at}
        lines.append(turn | {"content": f"At {hour}"})
    server.import_lines(lines)
    page.goto(f"{server.url}/s/{uuid}/outline/")
    page.get_by_label("Day").fill("2026-03-02")
    page.get_by_role("button", name="Go").click()
    expect(page).to_have_url(re.compile("/t/2/$"))
