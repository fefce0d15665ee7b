"""A chat with a tool call and its approval, by keyboard alone, as a screen reader announces it.

The announcements are the focused elements and the texts of live regions.
"""

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import Chat, Server, settle

HEARD = Path(__file__).with_name("heard.txt")
ANSWER = "It is written.\n\nThe second paragraph has `code`.\n\n- one\n- two"

LISTEN = """
() => {
  window.heard = [];
  const regions = "#announce, .sr[role=log], [role=alert]";
  new MutationObserver((changes) => {
    for (const { target, addedNodes } of changes) {
      const element = target.nodeType === 1 ? target : target.parentElement;
      if (!element?.closest(regions)) continue;
      heard.push(...[...addedNodes].map((node) => node.textContent.trim()).filter(Boolean));
    }
  }).observe(document.body, { childList: true, subtree: true, characterData: true });
}
"""


def focused(page: Page) -> str:
    """Return role and name of the focused element as the browser gives them to screen readers."""
    return page.locator(":focus").aria_snapshot().splitlines()[0].removeprefix("- ")


def test_a_chat_by_keyboard_is_announced_as_heard_txt_says(
    chat: Chat, wire: WireThread, server: Server
) -> None:
    page, lines = chat.page, []
    page.evaluate(LISTEN)

    def note(key: str) -> None:
        lines.extend(
            f"  hears: {text}".replace("\n", " / ") for text in page.evaluate("heard.splice(0)")
        )
        lines.append(f"{key} -> {focused(page)}")

    def press(*keys: str) -> None:
        for key in keys:
            page.keyboard.press(key)
            note(key)

    note("opened")
    call = ToolCall(name="write_file", input={"path": "heard.txt", "content": "beans"})
    wire.enqueue(Scenario(tools=(call,)), Scenario(text=ANSWER))
    page.keyboard.type("Write it")
    page.keyboard.press("Enter")
    expect(page.get_by_role("group", name="Approval needed")).to_be_focused()
    settle(0.2)
    note("Enter")
    press("Enter", "Tab", "Tab")
    page.keyboard.press("Enter")
    chat.wait_idle()
    expect(page.locator(".sr[role=log]")).to_contain_text("Answer complete")
    settle(0.2)
    note("Enter")
    text = "\n".join(lines) + "\n"
    assert text == HEARD.read_text(), text

    # A person can choose how much of an answer is announced.
    parts = ["It is written.", "The second paragraph has code.", "one two", "Answer complete"]
    for hears, expected in (("parts", parts), ("nothing", ["Answer complete"])):
        page.evaluate(f"document.documentElement.dataset.hears = '{hears}'")
        page.evaluate("document.querySelector('.sr[role=log]').replaceChildren()")
        wire.enqueue(Scenario(text=ANSWER, chunk=4, rate=40))
        chat.send("Go")
        said = page.locator(".sr[role=log] > p")
        expect(said.last).to_have_text("Answer complete")
        assert [" ".join(text.split()) for text in said.all_inner_texts()] == expected
        chat.wait_idle()

    # If an answer fails, its reason and what to do are announced too.
    wire.enqueue(Scenario(status=401, error_type="authentication_error"))
    chat.ask("Go on")
    expect(said.last).to_contain_text("failed")
    expect(said.nth(-2)).to_contain_text("Check the key")
