"""Requirements of all pages: accessibility, size, printing, keyboard and no JavaScript."""

import gzip
import re
from collections.abc import Callable
from uuid import uuid4

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e.accessibility import (
    violations,
    violations_everywhere,
    violations_light_and_dark,
)
from tests.e2e.conftest import NARROW, WIDE, Chat, Server, long_session, settle, take_picture
from tests.e2e.test_answer_content import answer_lines
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

KILOBYTE = 1024


def test_pages_are_accessible_and_do_not_scroll_sideways(
    server: Server, story: str, tab: Page
) -> None:
    paths = {
        "home": "/",
        "no-hits": "/w/example/?archived=1&q=zzzzzz",
        "every-row": f"/s/{story}/t/2/",
        "password": "/password/",
    }
    for name, path in paths.items():
        tab.goto(server.url + path)
        assert violations_everywhere(tab, name) == [], name
        tab.set_viewport_size(NARROW)
        is_cut = "all => all.some((one) => one.scrollWidth > one.clientWidth)"
        assert not tab.locator(".code-head > :first-child").evaluate_all(is_cut), name

    tab.goto(f"{server.url}/s/{story}/share/")
    tab.get_by_label("Include thinking").check()
    tab.get_by_role("button", name="Create link").click()
    tab.get_by_role("link", name="Open", exact=True).click()
    expect(tab.get_by_role("heading", name="Every kind of row")).to_be_visible()
    assert violations_everywhere(tab, "shared-session") == []


@pytest.mark.noisy  # the browser reports pages with status 404 or 410
def test_error_pages_and_sign_in_pages_are_accessible(
    server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context().new_page()
    paths = {
        "not-found": "/w/nowhere/",
        "bad-cursor": "/w/example/?before=x",
        "form": "/workspaces/new/",
    }
    for name, path in paths.items():
        page.goto(server.url + path)
        assert violations_light_and_dark(page, name) == [], path
    page.context.clear_cookies()
    for path in ("/sign-in/", "/sign-in/link/used/"):
        page.goto(server.url + path)
        picture = f"stranger{path.replace('/', '-')}".rstrip("-")
        assert violations_light_and_dark(page, picture) == [], path


def test_a_session_can_be_used_by_keyboard_renamed_archived_and_left(
    chat: Chat, wire: WireThread
) -> None:
    page = chat.page
    take_picture(page, "new-session")
    assert violations(page) == []
    wire.enqueue(Scenario(words=600, rate=10))
    expect(chat.message).to_be_focused()
    page.keyboard.type("Plant the beans")
    page.keyboard.press("Enter")
    expect(chat.page.locator("#draft .md")).to_contain_text("archive")
    assert violations(chat.page) == []
    chat.page.get_by_role("button", name="Stop").click()
    chat.wait_idle()

    # All controls can be reached by keyboard.
    wanted, names = {"Transcript", "Copy message", "New session", "Send"}, set()
    for _ in range(300):  # the list may have many sessions of other tests
        page.keyboard.press("Tab")
        names.add(
            page.evaluate(
                "document.activeElement.ariaLabel || document.activeElement.textContent.trim()"
            )
        )
        if wanted <= names:
            break
    assert wanted <= names, names

    expect(page.get_by_role("heading", level=1)).to_have_text("Plant the beans")
    page.get_by_label("Actions for this session").click()
    page.locator(".bar").get_by_label("Title").fill("The bean plan")
    page.get_by_role("button", name="Rename").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("The bean plan")
    page.get_by_label("Actions for this session").click()
    page.get_by_role("button", name="Archive").click()
    expect(page.get_by_text("This session is archived.")).to_be_visible()
    expect(page.locator("#rows")).to_contain_text("Plant the beans")
    page.get_by_role("button", name="Unarchive").first.click()
    expect(chat.message).to_be_visible()

    # Switching sessions leaves no row of the previous session.
    chat.wait_connected()
    wire.enqueue(Scenario(words=60, rate=20))
    chat.send("in the first one")
    expect(page.locator("#draft .md")).to_contain_text("archive")
    first = chat.uuid
    page.get_by_role("button", name="New session").click()
    expect(chat.message).to_be_visible()
    assert chat.uuid != first
    settle(1)
    expect(chat.rows).to_have_count(0)
    expect(page.locator("#draft")).not_to_contain_text("archive")
    chat.open(first)
    chat.wait_idle()
    expect(page.locator("#rows")).to_contain_text("in the first one")

    # A click anywhere on a workspace's card opens the workspace.
    page.goto(f"{chat.server.url}/")
    place = page.locator(".cards .facts").first.bounding_box()
    assert place is not None
    page.mouse.click(place["x"] + 20, place["y"] + 8)
    expect(page).to_have_url(f"{chat.server.url}/w/example/")


def test_the_chat_page_stays_within_its_size_limits(server: Server, tab: Page) -> None:
    uuid = long_session(server, turns=50)
    tab.goto(f"{server.url}/account/notifications/")  # notifications add a script to the page
    tab.get_by_role("button", name="Save").click()
    urls: set[str] = set()
    tab.goto("about:blank")
    tab.on("response", lambda response: urls.add(response.url))
    tab.goto(f"{server.url}/s/{uuid}/")
    tab.wait_for_load_state("networkidle")
    # Request each response again, because the browser does not keep every body.
    sizes = {
        url.removeprefix(server.url): len(gzip.compress(tab.request.get(url).body(), 9))
        for url in urls
        if url.startswith(server.url)
    }
    code = {url: size for url, size in sizes.items() if re.search(r"\.(js|css)$", url)}
    assert any("htmx" in url for url in code)
    assert sum(code.values()) < 32 * KILOBYTE, code
    assert sum(sizes.values()) < 62 * KILOBYTE, sizes


def test_reading_and_searching_work_without_javascript(
    server: Server, open_context: Callable[..., BrowserContext], wire: WireThread
) -> None:
    uuid = long_session(server, turns=120, title="Beans and peas")
    page = open_context(java_script_enabled=False).new_page()
    page.goto(f"{server.url}/w/example/?q=beans")
    page.get_by_role("link", name="Beans and peas").first.click()
    expect(page.locator("[data-seq='120']")).to_be_visible()
    page.get_by_role("button", name="Load older").click()
    expect(page.locator("[data-seq='60']")).to_be_visible()
    page.goto(f"{server.url}/s/{uuid}/")
    wire.enqueue(Scenario(text="By plain form."))
    expect(page.locator("#files")).to_have_accessible_name("Attach files")
    page.set_viewport_size(NARROW)
    outer, inner = (page.locator(part).bounding_box() for part in ("#composer", "#files"))
    assert outer
    assert inner
    assert outer["x"] <= inner["x"] <= inner["x"] + inner["width"] <= outer["x"] + outer["width"]
    page.set_viewport_size(WIDE)
    file = {"name": "good.txt", "mimeType": "text/plain", "buffer": b"words"}
    page.locator("#files").set_input_files(file)
    page.get_by_role("textbox", name="Message").fill("runs no scripts")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#rows")).to_contain_text("runs no scripts")
    for _ in range(20):
        if page.locator("#rows").get_by_text("By plain form.").count():
            break
        settle(0.2)
        page.reload()
    expect(page.locator("#rows")).to_contain_text("By plain form.")
    expect(page.get_by_role("link", name="good.txt")).to_be_visible()
    assert wire.requests[-1]["messages"][-1]["content"][0]["title"] == "good.txt"


def test_the_chat_page_can_be_printed_and_zoomed(
    server: Server, story: str, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context(viewport={"width": 680, "height": 450}).new_page()
    page.goto(f"{server.url}/s/{story}/")
    settle()
    take_picture(page, "zoom-200")
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    page.emulate_media(media="print")
    take_picture(page, "printed")
    expect(page.get_by_role("textbox", name="Message")).not_to_be_visible()
    # Folded and scrolling parts are printed as a whole.
    long = "\n".join(f"line {number}" for number in range(100))
    wide = "|" + "|".join(f"longestword{number}" for number in range(12)) + "|\n|" + 12 * "-|"
    uuid = str(uuid4())
    said = {"event_type": "user_message", "payload": {"text": long}}
    server.import_lines(
        [
            *answer_lines(uuid, wide),
            {"type": "turn", "number": 2, "role": "user", "content": long},
            {"type": "event", "seq": 2, "turn": 2, **said},
        ]
    )
    page.goto(f"{server.url}/s/{uuid}/")
    expect(page.locator(".table-acts")).to_be_hidden()
    for selector in (".folding > .md", ".table-wrap"):
        sizes = "(one) => [one.scrollWidth - one.clientWidth, one.scrollHeight - one.clientHeight]"
        assert page.locator(selector).evaluate(sizes) == [0, 0], selector
