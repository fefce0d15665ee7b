"""A server that is killed and restarted, and that accepts only small frames and few open pages."""

from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

from .conftest import NOTE_THE_CONNECTION, Chat, Server, add_person, settle, take_picture


@pytest.fixture
def server(small_server: Server) -> Server:
    return small_server


def begin_long_answer(server: Server, tab: Page, wire: WireThread) -> Chat:
    chat = Chat(tab, server).new()
    wire.enqueue(Scenario(words=900, rate=60))
    chat.send("write for long")
    expect(tab.locator("#draft .md")).to_contain_text("archive")
    return chat


@pytest.mark.noisy
def test_a_page_recovers_after_its_server_is_killed_and_restarted(
    server: Server, tab: Page, wire: WireThread
) -> None:
    chat = begin_long_answer(server, tab, wire)
    settle(1)
    shown = tab.locator("#draft .md").inner_text()
    server.kill()
    expect(tab.get_by_role("status").filter(has_text="onnect")).to_be_visible()
    expect(tab.get_by_text("Assistant is writing")).to_be_hidden()
    tab.get_by_role("button", name="Stop").click()
    expect(tab.get_by_text("Not connected. Try again in a moment.")).to_be_visible()
    take_picture(tab, "disconnected")
    chat.message.fill("typed while it was away")
    server.start()
    expect(tab.locator('#rows [data-kind="interrupted"]')).to_be_visible()
    expect(tab.get_by_role("button", name="Continue").first).to_be_visible()
    kept = tab.locator('#rows [data-event-type="assistant_text"] .md').last.inner_text()
    assert len(kept) >= len(shown) - 60
    expect(chat.message).to_have_value("typed while it was away")
    expect(tab.get_by_text("Not connected. Try again in a moment.")).to_be_hidden()
    take_picture(tab, "interrupted")
    seqs = [row.get_attribute("data-seq") for row in chat.rows.all()]
    assert len(seqs) == len(set(seqs))
    wire.enqueue(Scenario(text="Here I go on."))
    tab.get_by_role("button", name="Continue").first.click()
    expect(tab.locator("#rows")).to_contain_text("Here I go on.")

    # The limit applies only to frames that the server receives.
    chat.message.fill("")
    wire.enqueue(Scenario(words=9_000))
    chat.wait_idle().ask("a long answer, please")
    assert len(chat.rows.nth(-2).inner_text()) > 20_000


@pytest.mark.noisy
def test_a_page_shows_the_interruption_before_the_server_stops(
    server: Server, tab: Page, wire: WireThread
) -> None:
    chat = begin_long_answer(server, tab, wire)
    assert server.end() == 0
    expect(tab.locator('#rows [data-kind="interrupted"]')).to_contain_text("The server stopped")
    expect(tab.locator('#rows [data-event-type="assistant_text"] .md')).to_contain_text("archive")
    tab.evaluate(f"delete document.documentElement.dataset.connected; {NOTE_THE_CONNECTION}")
    server.start()
    chat.wait_connected()  # a click before that is refused
    wire.enqueue(Scenario(text="Here I go on."))
    tab.get_by_role("button", name="Continue").first.click()
    expect(tab.locator("#rows")).to_contain_text("Here I go on.")


ONLINE_WHILE_IT_CLOSES = """
const Line = WebSocket;
window.WebSocket = class extends Line {
  constructor(address) {
    super(address);
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      if (this.readyState === Line.CLOSING) dispatchEvent(new Event("online"));
      if (this.readyState < Line.CLOSED) port2.postMessage(0);
    };
    port2.postMessage(0);
  }
};
"""


@pytest.mark.noisy
def test_a_page_beyond_the_socket_limit_says_so_and_does_not_retry(
    server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    context = open_context(storage_state=None)
    pages = [context.new_page(), context.new_page()]
    pages[0].goto(add_person(server, "ada"))
    chat = Chat(pages[0], server).new()
    Chat(pages[1], server).open(chat.uuid).wait_connected()
    other: Page = context.new_page()
    opened: list[str] = []
    other.on("websocket", lambda socket: opened.append(socket.url))
    other.add_init_script(ONLINE_WHILE_IT_CLOSES)
    other.goto(f"{server.url}/s/{chat.uuid}/")
    expect(other.get_by_text("You have too many sessions open.")).to_be_visible()
    for page in pages:
        page.close()
    other.evaluate("dispatchEvent(new Event('online'))")
    settle()
    expect(other.get_by_text("You have too many sessions open.")).to_be_visible()
    assert len(opened) == 1
