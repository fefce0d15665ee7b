"""Two people in one session: presence, typing, authors of messages and unsent text."""

from collections.abc import Callable

from playwright.sync_api import BrowserContext, Page, expect

from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

from .accessibility import violations_everywhere, violations_light_and_dark
from .conftest import (
    NARROW,
    Chat,
    Server,
    add_person,
    settle,
    take_both_pictures,
    take_picture,
    wait_until,
)
from .line import Line

RENAME = """
from conversations.archive.sessions import get_session, rename_session
rename_session(get_session("{}"), title="Beans in May")
"""


def test_two_people_see_each_other_and_the_author_of_each_message(
    server: Server, tab: Page, open_context: Callable[..., BrowserContext], wire: WireThread
) -> None:
    line = Line(tab)
    chat = Chat(tab, server).new()
    other = open_context(storage_state=None).new_page()
    other.goto(add_person(server, "zoe"))
    other.goto(chat.page.url)
    zoe = chat.page.get_by_role("img", name="zoe, can write and approve")
    expect(zoe).to_be_visible()
    expect(other.get_by_role("list", name="Also here").get_by_role("listitem")).to_have_count(1)
    other.get_by_role("textbox", name="Message").press_sequentially("I am")
    expect(chat.page.get_by_text("zoe is writing")).to_be_visible()
    assert violations_everywhere(chat.page, "two-people") == []
    wire.enqueue(Scenario(text="Welcome."))
    other.get_by_role("textbox", name="Message").press("Enter")
    expect(chat.page.get_by_role("article", name="zoe")).to_contain_text("I am")
    expect(chat.page.get_by_text("zoe is writing")).to_be_hidden()
    chat.wait_idle()

    # Another person withdraws Zoe's queued message: its text and file return to her page.
    wire.enqueue(Scenario(words=900, rate=8))
    chat.send("Count the beans")
    expect(chat.page.locator("#draft .md")).to_contain_text("archive")
    theirs = Chat(other, server)
    file = {"name": "plot.txt", "mimeType": "", "buffer": b"Beans."}
    with other.expect_file_chooser() as chooser:
        other.get_by_role("button", name="Attach files").click()
    chooser.value.set_files([file])
    expect(other.get_by_role("list", name="Attached files")).to_contain_text("6 bytes")
    theirs.send("Mind the\n  peas")
    chat.message.fill("mine")
    queued = chat.page.get_by_role("list", name="Queued messages").get_by_role("listitem")
    expect(queued).to_contain_text("zoe")
    take_both_pictures(chat.page, "queued-by-another")
    queued.get_by_role("button", name="Withdraw").click()
    expect(queued).to_have_count(0)
    expect(theirs.message).to_have_value("Mind the\n  peas")
    expect(other.get_by_role("list", name="Attached files")).to_contain_text("plot.txt")
    notice = chat.page.locator(".row-info").filter(has_text="zoe")
    expect(notice).to_contain_text("Mind the")
    expect(notice).to_contain_text("plot.txt")
    expect(chat.message).to_have_value("mine")
    assert violations_light_and_dark(chat.page, "withdrawn", within="#rows") == []
    chat.message.fill("")
    chat.page.keyboard.press("Escape")
    chat.wait_idle()
    other.goto("about:blank")
    expect(zoe).to_be_hidden()

    # Rows from Zoe's absence are marked in her session list, and in the transcript on her return.
    wire.enqueue(Scenario(text="Then the beans."))
    chat.ask("What comes next?")
    other.goto(f"{server.url}/w/example/")
    unread = other.get_by_role("link", name="(unread)")
    expect(unread).to_have_count(1)
    take_both_pictures(other, "unread")
    other.goto(f"{server.url}/w/example/memory/")
    take_both_pictures(other, "unread-in-sidebar")
    unread.click()
    fresh = other.get_by_text("New since you were here")
    expect(fresh.locator("xpath=following-sibling::*[1]")).to_contain_text("What comes next?")
    assert violations_light_and_dark(other, "new-since", within="#rows") == []
    take_both_pictures(other, "new-since")
    other.set_viewport_size(NARROW)
    take_picture(other, "new-since-narrow")
    expect(zoe).to_be_visible()
    with line.cut():  # a page that reconnects shows the present people and the new title
        server.manage("shell", "-c", RENAME.format(chat.uuid))
        other.goto(f"{server.url}/w/example/")
        expect(unread).to_have_count(0)
    expect(chat.page.get_by_role("heading", name="Beans in May")).to_be_visible()
    expect(chat.page).to_have_title("Beans in May · Loom Web")
    expect(zoe).to_be_hidden()


def test_unsent_text_of_one_person_is_never_shown_to_another(
    server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    """Another person signs in in the same tab without a sign-out before."""
    page = open_context(storage_state=None).new_page()
    page.goto(server.sign_in_link())
    chat = Chat(page, server).new()
    url = page.url
    chat.message.fill("Anna alone knows")
    page.evaluate("""() => {
        const pending = Object.keys(sessionStorage)[0].replace("draft", "pending");
        const message = ["client-0001", ["Anna says", []]];
        localStorage.setItem(pending, JSON.stringify([message]));
    }""")
    page.context.clear_cookies()
    page.goto(add_person(server, "mia"))
    page.goto(url)
    chat.wait_connected()
    expect(chat.message).to_have_value("")
    settle(2)  # long enough for a pending message to be shown and sent
    expect(page.get_by_text("Anna says")).to_have_count(0)
    assert "Anna says" in page.evaluate("Object.values(localStorage)")[0]
    page.locator("form[action='/sign-out/'] button").first.evaluate("(one) => one.click()")
    page.wait_for_url("**/sign-in/**")
    assert page.evaluate("Object.keys(localStorage)") == []


def test_unsent_text_survives_a_new_sign_in_and_is_deleted_at_sign_out(
    server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context(storage_state=None).new_page()
    line = Line(page)
    page.goto(server.sign_in_link())
    chat = Chat(page, server).new()
    url = page.url
    with line.cut():
        chat.send("Peas in April")
        chat.message.fill("Beans in May")
        page.context.clear_cookies()
        page.goto(url)
    expect(page.get_by_role("button", name="Sign in", exact=True)).to_be_visible()
    page.goto(server.sign_in_link())
    page.goto(url)
    expect(chat.message).to_have_value("Beans in May")
    expect(page.locator("#rows")).to_contain_text("Peas in April")

    chat.wait_idle().ask("Beans in May")
    page.locator('[data-event-type="user_message"]').last.hover()
    page.get_by_role("button", name="Edit").last.click()
    page.locator("#rows textarea").fill("Beans in June")

    # A sign-out deletes the text, also in a tab that shows the admin.
    admin = page.context.new_page()
    Chat(admin, server).open(chat.uuid).wait_connected().message.fill("Anna alone knows")
    admin.goto(f"{server.url}/admin/auth/user/")
    assert "Anna alone knows" in admin.evaluate("Object.values(sessionStorage).join()")
    page.locator("form[action='/sign-out/'] button").evaluate("button => button.click()")
    expect(page.get_by_role("button", name="Sign in", exact=True)).to_be_visible()
    assert page.evaluate("Object.keys(sessionStorage)") == []
    wait_until(lambda: admin.evaluate("sessionStorage.length") == 0)


def test_a_sign_out_deletes_waiting_messages_and_text_in_other_tabs(
    server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context(storage_state=None).new_page()
    line = Line(page)
    page.goto(server.sign_in_link())
    chat = Chat(page, server).new()
    admin = page.context.new_page()
    admin.goto(f"{server.url}/admin/")
    with line.cut():
        chat.send("First")
        chat.message.fill("Second")
        assert "First" in admin.evaluate("Object.values(localStorage).join()")
        admin.get_by_role("button", name="Log out").click()
        admin.wait_for_url("**/sign-in/**")
        wait_until(lambda: page.evaluate("sessionStorage.length") == 0)
        chat.message.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("Not connected. Try again in a moment.")
        expect(chat.message).to_have_value("Second")
    page.evaluate("dispatchEvent(new Event('online'))")
    again = page.get_by_role("link", name="Sign in again")
    expect(again).to_be_visible()
    chat.message.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("Signed out. Sign in again")
    with page.expect_event("dialog") as asked:
        again.evaluate("(link) => setTimeout(() => link.click())")  # click() waits for the dialog
    assert asked.value.message == "The message you are writing will be lost. Leave this page?"
    asked.value.dismiss()
    expect(chat.message).to_have_value("Second")
    assert page.evaluate("Object.keys(localStorage)") in ([], ["theme"])  # set by the admin
    assert page.evaluate("Object.keys(sessionStorage)") == []
    assert "loom_signed_out" not in str(page.context.cookies())
