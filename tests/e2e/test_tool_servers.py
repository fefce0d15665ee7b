"""Tool servers: their questions in the transcript, prompts in the composer, and signing in."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, expect

from tests.e2e.accessibility import violations_everywhere
from tests.e2e.conftest import Chat, Server, settle, start_ordinary, take_picture, wait_until
from tests.e2e.test_tools import card, same_after_reload
from tests.mcp_servers.running import HttpServer, plain, sdk
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread


@pytest.fixture(scope="module")
def tool_server() -> Iterator[HttpServer]:
    with HttpServer("oauth_server.py") as running:
        yield running


@pytest.fixture(scope="module")
def server(
    make_server: Callable[..., Server],
    provider: WireThread,
    tool_server: HttpServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Server:
    file: Path = tmp_path_factory.mktemp("mcp") / "mcp.json"
    servers = {
        "almanac": plain("asks", effect="reads"),
        "sdk": sdk(env={"START_SECONDS": "3"}),
        "writer": plain("samples", effect="reads", sampling={}),
        "tickets": {"url": tool_server.url},
    }
    file.write_text(json.dumps({"servers": servers}))
    return start_ordinary(make_server, provider, LOOM_MCP_CONFIG=str(file))


def ask(chat: Chat, wire: WireThread, tool: str) -> Locator:
    """Have the model call a tool that asks a question, and return the question's card."""
    wire.enqueue(
        Scenario(text="I ask.", tools=(ToolCall(name=f"mcp__almanac__{tool}"),)),
        Scenario(text="Thank you."),
    )
    chat.send("Who am I?")
    expect(card(chat.page)).to_have_count(1)
    return card(chat.page)


@pytest.mark.noisy
def test_a_prompt_is_put_into_the_composer(chat: Chat, wire: WireThread) -> None:
    page = chat.page
    # The list of commands is made once, before the tool server has started.
    chat.message.press_sequentially("/sdk:")
    option = page.get_by_role("option").filter(has_text="/sdk:plan")
    expect(option).to_contain_text("Plan a bed.")
    take_picture(page, "prompt-offered")
    option.click()
    expect(chat.message).to_have_value("/sdk:plan ")
    chat.message.press("Enter")
    expect(page.locator("#refused")).to_contain_text("/sdk:plan needs: bed.")
    expect(chat.message).to_have_value("/sdk:plan ")
    chat.message.fill("/sdk:plan peas")
    chat.message.press("Enter")
    expect(chat.message).to_have_value("Plan the bed peas for spring.")
    expect(page.locator("#refused")).to_be_hidden()
    wire.enqueue(Scenario(text="Done."))
    chat.message.press("Enter")
    expect(chat.rows.first).to_contain_text("Plan the bed peas for spring.")
    chat.wait_idle()
    chat.message.fill("/sdk:none of these")
    chat.message.press("Enter")
    expect(page.get_by_role("button", name="Send as a message")).to_be_visible()


def test_a_tool_server_can_ask_the_model_and_the_person(
    chat: Chat, wire: WireThread, open_context: Callable[..., BrowserContext]
) -> None:
    """The person approves the model request, and answers a question by keyboard alone.

    An address is shown in full and declined, and a resource becomes a file of a message. A
    question can also be answered without JavaScript.
    """
    wire.enqueue(
        Scenario(text="I ask.", tools=(ToolCall(name="mcp__writer__sum_up"),)),
        Scenario(text="They are dry."),
        Scenario(text="Thank you."),
    )
    page = chat.page
    chat.send("How are the beans?")
    expect(card(page)).to_have_count(1)
    expect(card(page)).to_contain_text("writer asks the model")
    expect(card(page)).to_contain_text("Sum up: the beans")
    expect(card(page).locator(".ask")).to_be_focused()
    assert violations_everywhere(page, "sampling", within="#rows") == []
    card(page).get_by_role("button", name="Approve").click()
    expect(page.locator("[data-code=model_answered]")).to_contain_text(
        "claude-haiku-5-5 answered writer."
    )
    take_picture(page, "sampling-answered")
    chat.wait_idle()

    # A question can be answered by keyboard alone.
    asked = ask(chat, wire, "ask")
    expect(asked).to_contain_text("almanac asks")
    expect(page.locator("#announce")).to_have_text("Question: What is your name?")
    expect(page.locator("#status")).to_have_text("Waiting for an answer")
    field = asked.get_by_label(re.compile("Your name"))
    expect(asked.locator(".ask")).to_be_focused()
    assert violations_everywhere(page, "question", within="#rows") == []
    take_picture(page, "question")
    page.keyboard.press("Tab")
    expect(field).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("“Your name” is required.")).to_be_visible()
    expect(field).to_be_enabled()
    field.fill("Bob")
    page.keyboard.press("Enter")
    chat.wait_idle()
    expect(card(page)).to_have_count(0)
    decided = page.locator("#rows > .row-decided")
    expect(decided.last).to_contain_text("name: Bob")
    expect(page.get_by_text("“Your name” is required.")).to_be_hidden()
    assert "Bob" in str(wire.requests[-1]["messages"])
    take_picture(page, "question-answered")

    asked = ask(chat, wire, "visit")
    link = asked.get_by_role("link", name="Open example.org in a new tab")
    assert link.get_attribute("href") == "https://example.org/sign-in"
    assert "noopener" in (link.get_attribute("rel") or "")
    expect(asked).to_contain_text("https://example.org/sign-in")
    take_picture(page, "question-address")
    asked.get_by_role("button", name="Decline").click()
    chat.wait_idle()
    expect(decided.last).to_contain_text("Declined by")

    # A resource becomes a file of the message.
    wire.enqueue(Scenario(text="Beans."))
    chat.message.press_sequentially("What grows? @sou")
    option = page.get_by_role("option").filter(has_text="sdk:beds://south")
    expect(option).to_contain_text("The south bed")
    take_picture(page, "resource-offered")
    option.click()
    tray = page.get_by_role("list", name="Attached files")
    expect(tray).to_contain_text("south")
    expect(tray.get_by_role("progressbar")).to_have_count(0)
    expect(chat.message).to_have_value("What grows? ")
    take_picture(page, "resource-attached")
    chat.message.press("Enter")
    expect(page.locator("#rows > [data-event-type=assistant_text]").last).to_contain_text("Beans.")
    chat.wait_idle()
    assert "Beans, 40 cm apart." in str(wire.requests[-1]["messages"])
    same_after_reload(chat)
    page.evaluate(
        "import('/static/js/attach.js').then(({ addResource }) => addResource('sdk:beds://x'))"
    )
    expect(tray).to_contain_text("The tool server sdk did not return beds://x.")
    tray.get_by_role("button", name=re.compile("^Remove")).click()

    # A question can be answered without JavaScript.
    ask(chat, wire, "ask")
    settle()
    plain_page = open_context(java_script_enabled=False).new_page()
    plain_page.goto(f"{chat.server.url}/s/{chat.uuid}/")
    asked = plain_page.locator("#rows > .row-ask:not(.settled)")
    asked.get_by_label(re.compile("Your name")).fill("Eve")
    asked.get_by_role("button", name="Send answer").click()
    expect(plain_page).to_have_url(re.compile(rf"/s/{chat.uuid}/$"))
    chat.wait_idle()
    assert "Eve" in str(wire.requests[-1]["messages"])


def test_a_person_can_sign_in_and_out_at_a_tool_server(
    server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context().new_page()
    settings = f"{server.url}/w/example/settings/tools/"
    page.goto(settings)
    wait_until(lambda: "connecting" not in page.request.get(settings).text())
    page.reload()
    card = page.get_by_role("region", name="Tool servers")
    expect(card).to_contain_text("Sign-in required")
    card.get_by_role("button", name="Sign in to tickets").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to tickets")
    expect(page.get_by_text("every workspace")).to_be_visible()
    assert violations_everywhere(page, "tool-server-sign-in") == []
    page.get_by_role("link", name=re.compile("^Continue to 127")).click()
    expect(page).to_have_url(settings)
    expect(page.get_by_text("Signed in to tickets.")).to_be_visible()
    expect(card).to_contain_text(re.compile("HTTP.*ready.*Signed in by", re.DOTALL))
    assert violations_everywhere(page, "tool-server-signed-in") == []
    card.get_by_role("button", name="Sign out of tickets").click()
    expect(page.get_by_text("Signed out of tickets.")).to_be_visible()
    expect(card).to_contain_text("Sign-in required")
