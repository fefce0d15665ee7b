"""The row of the recall tool: its summary line and its links to turns."""

from playwright.sync_api import expect

from tests.e2e.conftest import Chat, Server, take_both_pictures
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

SEARCH = ToolCall(
    name="conversation_recall",
    input={"action": "search", "query": "Which colour has it, the zinnia?"},
)


def test_a_recall_row_shows_its_query_and_links_to_the_turns(
    server: Server, wire: WireThread, chat: Chat
) -> None:
    wire.enqueue(Scenario(text="Noted."))
    chat.ask("The zinnia is **red**.")
    wire.enqueue(Scenario(tools=(SEARCH,), text="Let me look."), Scenario(text="It is red."))
    chat.ask("Which colour has it?")
    row = chat.page.locator('#rows [data-event-type="tool_call_completed"]')
    expect(row.locator("summary code")).to_have_text('search "Which colour has it, the zinnia?"')
    row.locator("summary").click()
    link = row.get_by_role("link", name="[Turn 1]")
    expect(link).to_have_attribute("href", f"/s/{chat.uuid}/t/1/")
    link.scroll_into_view_if_needed()
    take_both_pictures(chat.page, "recall")
    row.locator("summary").click()
    live = chat.rows_html()
    chat.page.reload()
    expect(chat.rows.first).to_be_visible()
    assert chat.rows_html() == live
    row.locator("summary").click()
    link.click()
    expect(chat.page).to_have_url(f"{server.url}/s/{chat.uuid}/t/1/")
