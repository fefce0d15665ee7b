"""The chat in low and narrow windows, and keys of input methods and in questions."""

from collections.abc import Callable

from playwright.sync_api import expect

from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import (
    NAME_OF_THE_MODEL_FITS,
    NARROW,
    WIDE,
    Chat,
    Server,
    long_session,
    settle,
    take_picture,
    wait_until,
)

LOW = {"width": 683, "height": 330}  # half of a laptop's window, as at a zoom of 200 %

CODE_IN_LISTS = "- one\n\n  - two\n\n    ```python\n    print('beans')\n    ```\n"

ADD_WORKSPACES = """
(menu) => {
  for (let number = 0; number < 30; number += 1) {
    menu.append(menu.querySelector("a").cloneNode(true));
  }
}
"""

IS_INSIDE = """
(button) => button.getBoundingClientRect().right
  <= button.closest(".code").getBoundingClientRect().right
"""


def test_a_low_window_shows_the_end_and_keys_work_after_rows_are_dropped(
    server: Server, open_chat: Callable[..., Chat]
) -> None:
    chat = open_chat(viewport=LOW).open(long_session(server, turns=220)).wait_connected()
    page, asked = chat.page, list[str]()
    page.on("request", lambda request: asked.append(request.url))
    settle(1.5)
    assert [url for url in asked if "before=" in url] == []
    expect(chat.rows.last).to_be_in_viewport()
    take_picture(page, "low-window")

    page.set_viewport_size(WIDE)
    first, last = (page.locator(f'[data-seq="{seq}"]') for seq in (1, 220))
    chat.load("Load older", lambda: first.count() > 0)
    expect(last).to_have_count(0)
    chat.transcript.evaluate("(log) => { log.focus(); log.scrollTop = 0; }")
    page.keyboard.press("j")
    focused = page.locator("#rows .row:focus")
    expect(focused).to_have_count(1)
    seq = focused.get_attribute("data-seq")
    chat.load("Load newer", lambda: last.count() > 0)
    expect(page.locator(f'[data-seq="{seq}"]')).to_have_count(0)
    settle()  # until the new rows have their final positions
    page.keyboard.press("End")
    expect(last).to_be_in_viewport()


def test_the_page_ignores_keys_of_an_input_method(chat: Chat, wire: WireThread) -> None:
    page, devtools = chat.page, chat.page.context.new_cdp_session(chat.page)
    composed = {"text": "にほん", "selectionStart": 3, "selectionEnd": 3}
    chat.ask("one")
    wire.enqueue(Scenario(words=400, rate=40))
    chat.send("two")
    expect(page.locator("#draft .md")).to_contain_text("archive")
    chat.message.focus()
    devtools.send("Input.imeSetComposition", composed)
    page.keyboard.press("Escape")
    settle()
    expect(chat.transcript).to_have_attribute("data-run-state", "running")
    devtools.send("Input.imeSetComposition", composed | {"text": "", "selectionStart": 0})
    chat.message.fill("")
    chat.message.press("Escape")
    chat.wait_idle()

    page.locator("#rows .row-user").first.hover()
    page.get_by_role("button", name="Edit").first.click()
    field = page.locator(".editor textarea")
    field.fill("Written anew ")
    devtools.send("Input.imeSetComposition", composed)
    page.keyboard.press("Escape")
    expect(field).to_have_value("Written anew にほん")


def test_text_in_a_question_moves_to_the_composer_when_another_decides(
    open_chat: Callable[..., Chat], wire: WireThread
) -> None:
    first = open_chat().new()
    wire.enqueue(
        Scenario(tools=(ToolCall(name="shell_execute", input={"command": "true"}),)),
        Scenario(text="Done."),
    )
    first.send("Go")
    reason = first.page.locator(".row-ask:not(.settled) input:not([type=checkbox])")
    reason.click()
    first.page.keyboard.type("No, this must ")
    second = open_chat().open(first.uuid)
    second.page.locator("#rows").get_by_role("button", name="Approve").click()
    expect(first.message).to_be_focused()
    first.page.keyboard.type("not be run")
    first.page.keyboard.press("Enter")
    first.wait_idle()
    expect(first.message).to_have_value("No, this must not be run")
    expect(first.page.get_by_role("alert")).to_contain_text("What you wrote is in")
    expect(first.page.locator("#rows .row-user")).to_have_count(1)
    first.message.fill("")
    wire.enqueue(
        Scenario(tools=(ToolCall(name="shell_execute", input={"command": "false"}),)),
        Scenario(text="Done."),
    )
    first.send("Again")
    first.page.locator(".row-ask:not(.settled) button").last.focus()
    second.page.locator("#rows").get_by_role("button", name="Approve").click()
    expect(first.message).to_be_focused()
    expect(first.message).to_have_value("")
    first.wait_idle()  # or this run takes the next test's answer


def test_controls_stay_visible_in_narrow_windows_and_long_menus(
    open_chat: Callable[..., Chat], wire: WireThread
) -> None:
    chat = open_chat(viewport=NARROW, locale="de-DE").new()
    wire.enqueue(Scenario(text=CODE_IN_LISTS, first_delay=3))
    chat.page.locator("#message").fill("Zeig es")
    chat.page.locator("#message").press("Enter")
    expect(chat.page.locator("#stop")).to_be_visible()
    take_picture(chat.page, "stop-narrow")
    assert chat.page.evaluate(NAME_OF_THE_MODEL_FITS)
    buttons = chat.page.locator("#rows .code-head button")
    expect(buttons).to_have_count(3)
    wait_until(lambda: all(button.evaluate(IS_INSIDE) for button in buttons.all()))
    take_picture(chat.page, "code-in-lists")
    name = chat.page.locator(".code-lang")
    assert name.evaluate("(name) => name.scrollWidth <= name.clientWidth")

    chat.page.set_viewport_size(WIDE)
    chat.page.locator(".switch summary").click()
    chat.page.locator(".switch .pop").evaluate(ADD_WORKSPACES)
    last = chat.page.locator(".switch .pop a").last
    last.focus()
    expect(last).to_be_in_viewport(ratio=1)
    assert chat.page.evaluate("document.documentElement.scrollTop") == 0
