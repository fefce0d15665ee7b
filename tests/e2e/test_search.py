"""The search page and finding in a session, in a browser."""

import re
from collections.abc import Callable
from uuid import uuid4

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.e2e.accessibility import marks_unseen_in_forced_colours, violations_everywhere
from tests.e2e.conftest import (
    NARROW,
    WIDE,
    Chat,
    Server,
    long_session,
    settle,
    take_picture,
    wait_until,
)
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread


def import_turns(server: Server, *turns: dict[str, object], title: str) -> str:
    """Import a session without a journal, and return its uuid."""
    uuid = str(uuid4())
    lines: list[dict[str, object]] = [
        {"type": "session", "uuid": uuid, "workspace": "example", "title": title}
    ]
    lines += [{"type": "turn", "number": n, **turn} for n, turn in enumerate(turns, 1)]
    server.import_lines(lines)
    return uuid


def reading(name: str, number: int) -> list[dict[str, object]]:
    """Return the turns of a tool call and its result."""
    call = {"id": f"c{number}", "name": "read_file", "arguments": {"path": name}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {
            "role": "tool",
            "content": f"marrow {number} in {name}",
            "tool_call_id": f"c{number}",
            "tool_name": "read_file",
        },
    ]


@pytest.fixture(scope="session")
def archive(server: Server) -> str:
    """Import a session of 120 turns and one with enough tool calls to be folded.

    Return the uuid of the first session. Its words occur in no other test, because tests that run
    before share the server.
    """
    calls = [turn for number in range(1, 7) for turn in reading(f"bed_{number}.txt", number)]
    import_turns(server, {"role": "user", "content": "Read the beds"}, *calls, title="Reading beds")
    return long_session(server, turns=120, title="Counting furrows", words="Furrow")


def in_sight(row: Locator) -> None:
    expect(row).to_be_visible()
    expect(row).to_be_in_viewport()


def search(page: Page, text: str) -> None:
    page.get_by_role("searchbox", name="Search for").fill(text)
    page.get_by_role("searchbox", name="Search for").press("Enter")


def test_search_hits_can_be_filtered_paged_and_opened(
    server: Server, archive: str, tab: Page
) -> None:
    tab.goto(server.url)
    tab.get_by_role("link", name="Search all sessions").click()
    search(tab, "furrow")
    expect(tab.locator(".hit")).to_have_count(20)
    expect(tab.locator(".hit mark").first).to_be_visible()
    tab.get_by_label("Said by").select_option("People")
    tab.get_by_label("Order").select_option("Newest first")
    tab.get_by_role("button", name="Search").click()
    expect(tab).to_have_url(re.compile("role=user"))
    expect(tab.get_by_text("60 turns")).to_be_visible()
    expect(tab.locator(".hit").first).to_contain_text("Turn 119")
    tab.get_by_role("button", name="More results").click()
    expect(tab.locator(".hit")).to_have_count(40)
    expect(tab.locator(".hit").nth(20).get_by_role("link")).to_be_focused()
    take_picture(tab, "search-hits")
    tab.locator(".hit").nth(39).get_by_role("link").click()
    expect(tab).to_have_url(re.compile(rf"/s/{archive}/t/41/$"))
    in_sight(tab.locator("#rows [data-turn='41']"))
    wait_until(lambda: tab.evaluate("CSS.highlights.get('found')?.size > 0"))

    # A folded tool call with a hit is unfolded.
    tab.goto(f"{server.url}/search/?q=marrow")
    tab.locator(".hit").filter(has_text="marrow 3").get_by_role("link").click()
    in_sight(tab.get_by_text("marrow 3 in bed_3.txt"))

    for name, path in {
        "search-hits": "/search/?q=furrow&role=user",
        "search-no-hits": "/search/?q=zeppelin&workspace=example",
        "find-hits": f"/s/{archive}/find/?q=furrow",
    }.items():
        tab.goto(server.url + path)
        assert violations_everywhere(tab, name) == [], name


def find_box(page: Page) -> Locator:
    return page.get_by_role("searchbox", name="Find in this session")


def test_finding_opens_rows_that_are_not_loaded_or_were_replaced(
    archive: str, open_chat: Callable[..., Chat], wire: WireThread
) -> None:
    chat = open_chat().open(archive).wait_connected()
    page = chat.page
    expect(page.locator("#rows [data-turn='3']")).to_have_count(0)
    chat.message.press("f")  # in the composer, the key types a letter and is no shortcut
    expect(chat.message).to_have_value("f")
    expect(page.locator("#panel")).to_be_hidden()
    chat.message.fill("")
    chat.transcript.focus()
    page.keyboard.press("f")
    expect(find_box(page)).to_be_focused()
    page.keyboard.type('"furrow 3"')
    page.keyboard.press("Enter")
    expect(page.locator(".hit")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/t/3/#find="))
    in_sight(page.locator("#rows [data-turn='3']"))
    expect(find_box(page)).to_have_value('"furrow 3"')
    expect(page.locator(".hit[aria-current]")).to_contain_text("Turn 3")
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()
    expect(page.get_by_role("link", name="Find in this session")).to_be_focused()
    late: list[Route] = []
    page.route("**/find/**", lambda route: late.append(route))
    page.keyboard.press("Enter")
    expect(find_box(page)).to_be_focused()
    page.keyboard.type("marrow")
    expect(find_box(page)).to_have_value("marrow")
    late.pop().continue_()
    expect(page.locator("#panel-body")).not_to_have_attribute("aria-busy", "true")
    expect(find_box(page)).to_have_value("marrow")
    expect(find_box(page)).to_be_focused()
    page.unroute_all()
    find_box(page).press("Enter")
    page.locator("#found").get_by_role("link", name="Search all sessions").click()
    expect(page.locator(".hit")).to_have_count(6)

    # In a narrow window, the panel does not cover the chosen hit.
    page.set_viewport_size(NARROW)
    chat.open(archive).wait_connected()
    page.get_by_role("link", name="Find in this session").click()
    find_box(page).fill('"furrow 119"')
    find_box(page).press("Enter")
    page.locator(".hit a").click()
    expect(page.locator("#panel")).to_be_hidden()
    in_sight(page.locator("#rows [data-turn='119']"))
    page.get_by_role("link", name="Find in this session").click()
    expect(page.locator(".hit[aria-current]")).to_contain_text("Turn 119")
    expect(find_box(page)).to_be_focused()

    # There, the panel of a page that a hit has opened is loaded when the person opens it, and goes
    # on at the hit, which may be on one of the next pages of hits.
    chat.open(archive).wait_connected()
    page.get_by_role("link", name="Find in this session").click()
    find_box(page).fill("furrow")
    page.get_by_label("Order").select_option("Newest first")
    expect(page.locator(".hit")).to_have_count(50)
    page.get_by_role("button", name="More results").click()
    page.locator(".hit a").nth(97).click()
    expect(page).to_have_url(re.compile(r"/t/23/#find="))
    expect(page.locator("#panel")).to_be_hidden()
    page.get_by_role("link", name="Find in this session").click()
    expect(find_box(page)).to_be_focused()
    expect(page.locator(".hit[aria-current]")).to_contain_text("Turn 23")
    page.get_by_role("button", name="Next hit").click()
    in_sight(page.locator("#rows [data-turn='22']"))

    # A replaced turn is shown at its old place.
    page.set_viewport_size(WIDE)
    chat.new()
    for answer in ("Leeks then.", "Chard then."):
        wire.enqueue(Scenario(text=answer))
    chat.ask("Shall we sow salsify?")
    chat.rows.first.hover()
    chat.rows.first.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Edited text").fill("Shall we sow celeriac?")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#rows")).to_contain_text("Chard then.")
    page.goto(f"{chat.server.url}/search/?q=salsify")
    expect(page.locator(".hit")).to_contain_text("Replaced")
    page.locator(".hit a").click()
    in_sight(page.locator("#rows [data-turn='1']").filter(has_text="salsify"))


def test_stepping_through_hits_loads_more_without_changing_a_row(
    archive: str, open_chat: Callable[..., Chat]
) -> None:
    chat = open_chat().open(archive, "find/?q=furrow&order=newest")
    page = chat.page
    page.get_by_label("Breadcrumb").get_by_role("link").last.click()
    chat.wait_connected()
    before = chat.rows_html()
    page.get_by_role("link", name="Find in this session").click()
    find_box(page).fill("furrow")
    find_box(page).press("Enter")
    expect(page.locator(".hit")).not_to_have_count(0)
    with page.expect_response(lambda response: "order=newest" in response.url):
        page.get_by_label("Order").last.select_option("Newest first")
    settle()  # the first hit may be the same before the new order is loaded
    expect(page.locator(".hit").first).to_contain_text("Turn 120")
    find_box(page).press("Enter")
    expect(page.locator(".hit").nth(0)).to_have_attribute("aria-current", "true")
    in_sight(page.locator("#rows [data-turn='120']"))
    page.get_by_role("button", name="Next hit").click()
    expect(page.locator(".hit").nth(1)).to_have_attribute("aria-current", "true")
    find_box(page).press("Shift+Enter")
    expect(page.locator(".hit").nth(0)).to_have_attribute("aria-current", "true")
    assert marks_unseen_in_forced_colours(page) == []
    assert page.evaluate("CSS.highlights.get('found').size") > 0
    expect(page.locator("#rows .target")).to_have_count(0)
    assert chat.rows_html() == before
    page.locator(".hit").nth(48).get_by_role("link").click()
    in_sight(page.locator("#rows [data-turn='72']"))
    find_box(page).press("Enter")
    in_sight(page.locator("#rows [data-turn='71']"))
    find_box(page).press("Enter")
    expect(page.locator(".hit[aria-current]")).to_contain_text("Turn 70")
    in_sight(page.locator("#rows [data-turn='70']"))
    expect(find_box(page)).to_be_focused()
    page.locator(".hit").nth(99).get_by_role("link").click()
    expect(page).to_have_url(re.compile(r"/t/21/#find"))
    in_sight(page.locator("#rows [data-turn='21']"))
    expect(page.locator(".hit[aria-current]")).to_contain_text("Turn 21")
    expect(find_box(page)).to_be_focused()
    page.get_by_role("navigation", name="Panel").get_by_role("link", name="Context").click()
    expect(find_box(page)).to_have_count(0)
    page.get_by_role("link", name="Find in this session").click()
    expect(find_box(page)).to_have_value("furrow")
    expect(page.locator(".hit").first).to_be_visible()
    assert violations_everywhere(page, "find-panel", within="#panel") == []
