"""Tool calls in the chat: their rows, their live output and their questions."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

from playwright.sync_api import BrowserContext, Locator, Page, WebSocketRoute, expect

from tests.e2e.accessibility import (
    violations,
    violations_everywhere,
    violations_light_and_dark,
)
from tests.e2e.conftest import Chat, Server, settle, take_picture, wait_until
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

DIFF = """\
--- a/garden/beds.py
+++ b/garden/beds.py
@@ -1,3 +1,4 @@
 from dataclasses import dataclass
-def plant(what: str, depth: int = 1) -> str:
+def plant(what: str, depth: int = 2) -> str:
+    check_season(what)
     return f"{what} at {depth}"
"""
ANSI = (
    "\x1b[1mpytest\x1b[0m \x1b[36m8.4\x1b[0m\n"
    + "".join(
        f"tests/test_bed_{n}.py \x1b[32mPASSED\x1b[0m\x1b[32m [ {n} %]\x1b[0m\n" for n in range(6)
    )
    + "tests/test_peas.py \x1b[31mFAILED\x1b[0m\n"
    + "\x1b[41;97m ERROR \x1b[0m \x1b[33mwarning\x1b[0m \x1b[34mblue\x1b[0m \x1b[35mmagenta\x1b[0m "
    "\x1b[90mgrey\x1b[0m \x1b[7minverse\x1b[0m \x1b[4munderlined\x1b[0m "
    "\x1b[38;5;208morange\x1b[0m\n"
    "a name that \u202eturns\u202c around\n"
)


def writing(path: str, content: str = "beans\n") -> Scenario:
    return Scenario(
        text="I write it.",
        tools=(ToolCall(name="write_file", input={"path": path, "content": content}),),
    )


def running(command: str) -> Scenario:
    return Scenario(tools=(ToolCall(name="shell_execute", input={"command": command}),))


def card(page: Page) -> Locator:
    return page.locator("#rows > .row-ask:not(.settled)")


def done(page: Page) -> Locator:
    return page.locator('#rows > [data-event-type="tool_call_completed"]')


def same_after_reload(chat: Chat) -> None:
    chat.wait_idle()
    settle()
    live = chat.rows_html()
    chat.page.reload()
    expect(chat.rows.first).to_be_visible()
    settle()
    assert chat.rows_html() == live


def rows_session(server: Server) -> str:
    """Import a session with calls in every state, and return its uuid."""
    uuid = str(uuid4())
    events: list[tuple[str, dict[str, Any]]] = [("user_message", {"text": "Mend the beds"})]

    def call(number: int, name: str, arguments: Any, **result: Any) -> None:
        base = {"call_id": f"c{number}", "name": name, "arguments": arguments}
        events.append(("tool_call_started", base))
        if result:
            events.append(("tool_call_completed", base | result))

    call(1, "read_file", {"path": "garden/beds.py"}, ok=True, output="x = 1\n" * 30, duration_ms=4)
    call(
        2,
        "shell_execute",
        {"command": "pytest -q"},
        ok=False,
        error=ANSI,
        exit_code=1,
        duration_ms=2310,
    )
    call(
        3,
        "edit_file",
        {"path": "garden/beds.py", "old_text": "a"},
        ok=True,
        output="Edited.",
        diff=DIFF,
        duration_ms=12,
        decision="once",
        decided_by="ann",
    )
    call(
        4,
        "shell_execute",
        {"command": "rm -rf build && make a very long command line that goes on and on"},
        ok=False,
        state="denied",
        error="The person denied this call: not now.",
        decision="deny",
        decided_by="ann",
        reason="not now",
    )
    events.append(("assistant_text", {"text": "Then I look around."}))
    for number in range(5, 10):
        call(
            number,
            "search_files",
            {"pattern": f"plant_{number}", "path": "garden"},
            ok=True,
            output=f"{number} hits",
            duration_ms=number,
        )
    events.append(("assistant_text", {"text": "And go on."}))
    call(
        10, "fetch_url", {"url": "https://example.org"}, ok=False, state="stopped", error="Stopped."
    )
    call(
        11,
        "git_command",
        {"arguments": ["status"]},
        ok=False,
        state="interrupted",
        error="Interrupted.",
    )
    call(12, "unheard_of", "not an object", ok=None, output="line\n" * 2000)
    events.append(("assistant_text", {"text": "Now I ask."}))
    call(13, "edit_file", {"path": "garden/beds.py"})
    asked = {
        "call": str(uuid4()),
        "call_id": "c14",
        "name": "edit_file",
        "summary": "Edit garden/beds.py",
        "diff": DIFF,
        "kind_key": "files",
        "kind_label": "file changes",
    }
    events.append(
        ("info", {"kind": "approval", "code": "approval_asked", "text": "Edit", "data": asked})
    )
    asked = {
        "call": str(uuid4()),
        "call_id": "c15",
        "name": "shell_execute",
        "summary": "Run pip install peas",
        "command": "pip install peas",
        "note": "With network.",
        "kind_label": "exactly “pip install peas”",
    }
    events.append(
        ("info", {"kind": "approval", "code": "approval_asked", "text": "Run", "data": asked})
    )
    lines: list[dict[str, Any]] = [
        {"type": "session", "uuid": uuid, "workspace": "example", "title": "Rows of tools"},
        {"type": "turn", "number": 1, "role": "user", "content": "Mend the beds"},
        {"type": "turn", "number": 2, "role": "tool", "content": "line\n" * 2000},
    ]
    lines += [
        {"type": "event", "seq": seq, "event_type": kind, "payload": payload, "turn": min(seq, 2)}
        for seq, (kind, payload) in enumerate(events, 1)
    ]
    server.import_lines(lines)
    return uuid


def test_tool_rows_are_shown_in_every_state(server: Server, open_chat: Callable[..., Chat]) -> None:
    page = open_chat().open(rows_session(server)).page
    for word in ("Done", "Failed", "Denied", "Stopped", "Interrupted", "Outcome unknown"):
        expect(page.locator("#rows .state").filter(has_text=word).first).to_be_attached()
    group = page.get_by_role("button", name="5 tool calls")
    expect(group).to_have_attribute("aria-expanded", "false")
    expect(done(page).filter(has_text="plant_7")).to_be_hidden()
    group.click()
    expect(done(page).filter(has_text="plant_7")).to_be_visible()
    group.click()
    page.get_by_role("button", name="4 tool calls").click()
    row = done(page).filter(has_text="garden/beds.py").nth(1)
    row.locator("summary").click()
    expect(row.locator(".da em").first).to_have_text("2")
    unknown = done(page).filter(has_text="unheard_of")
    unknown.locator("summary").click()
    expect(unknown.get_by_role("link", name="Show more (9 KB)")).to_be_visible()
    unknown.get_by_role("link", name="Show more (9 KB)").click()
    expect(unknown.locator("code").last).to_have_text("line\n" * 400)
    unknown.locator("summary").click()
    page.evaluate("document.querySelector('#transcript').scrollTop = 0")
    assert violations_everywhere(page, "tool-rows") == []
    page.evaluate("document.querySelector('#transcript').scrollTop = 1e6")
    assert violations_everywhere(page, "tool-cards", within=".row-ask") == []


def press_while_it_moves(button: Locator) -> None:
    """Press a button that moves during the click, as when rows or output are added above it."""
    button.hover()
    button.page.mouse.down()
    button.page.evaluate("document.querySelector('#rows').style.paddingTop = '90px'")
    settle()
    button.page.mouse.up()


def test_calls_can_be_decided_by_mouse_keyboard_and_without_javascript(
    chat: Chat, wire: WireThread, server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    """Parallel calls have a line each, and "Always allow" applies to the kind of call."""
    wire.enqueue(writing("allowed.txt"), Scenario(text="It is written."))
    chat.send("Write it")
    page, question = chat.page, card(chat.page)
    expect(question).to_contain_text("Create allowed.txt")
    expect(question.locator(".da")).to_have_text("+beans\n")
    expect(page.get_by_text("Waiting for approval").first).to_be_visible()
    press_while_it_moves(question.get_by_role("button", name="Approve"))
    expect(question).to_have_count(0)
    chat.wait_idle()
    expect(done(page).locator(".state")).to_have_text("Done")
    assert any(path.read_text() == "beans\n" for path in server.folder.rglob("allowed.txt"))

    wire.enqueue(writing("denied.txt"), Scenario(text="Then not."))
    chat.send("Write it")
    expect(card(page).locator(".ask")).to_be_focused()
    page.keyboard.press("Enter")  # does not answer the question
    reason = card(page).get_by_role("textbox", name="Reason for denying")
    for _ in range(4):  # the diff, Approve, Always allow, the reason
        page.keyboard.press("Tab")
    expect(reason).to_be_focused()
    page.keyboard.press("Enter")
    expect(card(page)).to_be_visible()
    page.keyboard.type("Use the other file.")
    page.keyboard.press("Enter")
    chat.wait_idle()
    expect(done(page).locator(".state")).to_have_text(["Done", "Denied"])
    assert "Use the other file." in json.dumps(wire.requests[-1]["messages"])
    assert not list(server.folder.rglob("denied.txt"))

    calls = tuple(ToolCall(name="list_files", input={"path": "."}, id=f"t{n}") for n in range(3))
    wire.enqueue(Scenario(tools=calls), Scenario(text="Looked."))
    chat.ask("Look")
    expect(done(page).locator(".state")).to_have_text(["Done", "Denied", *["Done"] * 3])
    expect(page.locator("#rows > .row-tool:not(.settled)")).to_have_count(5)

    wire.enqueue(running("seq 3"), running("seq 4"), Scenario(text="Counted."))
    chat.send("Count")
    page.get_by_role("button", name="Always allow “seq” with any arguments").click()
    expect(page.locator("#rows")).to_contain_text("Counted.")
    chat.wait_idle()
    expect(done(page).locator(".state")).to_have_text(["Done", "Denied", *["Done"] * 5])
    same_after_reload(chat)
    done(page).first.locator("summary").click()
    expect(done(page).first).to_contain_text("Allowed once by")
    page.get_by_role("link", name="Call details").first.click()
    expect(page.locator("#panel")).to_contain_text("Allowed once by")
    assert violations_light_and_dark(page, "tool-record", within="#panel") == []

    wire.enqueue(writing("plain.txt"), Scenario(text="By form."))
    asked = len(wire.requests)
    chat.send("Write it")
    expect(card(page)).to_be_visible()
    plain = open_context(java_script_enabled=False).new_page()
    plain.goto(f"{server.url}/s/{chat.uuid}/")
    take_picture(plain, "tool-card-without-scripts")
    reason = plain.get_by_role("textbox", name="Reason for denying")
    reason.fill("Not by form.")
    reason.press("Enter")  # does not answer the question
    expect(plain.get_by_role("button", name="Approve", exact=True)).to_be_visible()
    plain.get_by_role("button", name="Deny").click()
    wait_until(lambda: len(wire.requests) > asked + 1)
    assert "Not by form." in json.dumps(wire.requests[-1]["messages"])
    chat.wait_idle()


def test_a_question_is_the_same_after_a_reload_and_in_another_tab(
    open_chat: Callable[..., Chat], wire: WireThread
) -> None:
    first = open_chat().new()
    wire.enqueue(running("sleep 0.01; true"), Scenario(text="Slept."))
    first.send("Sleep")
    expect(card(first.page)).to_be_visible()
    settle()
    html = first.rows_html()
    first.page.reload()
    expect(card(first.page)).to_be_visible()
    assert first.rows_html() == html
    second = open_chat().open(first.uuid)
    expect(card(second.page)).to_contain_text("sleep 0.01; true")
    always = card(second.page).get_by_role("button", name="Always")
    expect(always).to_have_text("Always allow exactly “sleep 0.01; true”")
    card(second.page).get_by_role("button", name="Approve").click()
    expect(card(first.page)).to_have_count(0)
    first.wait_idle()
    second.wait_idle()
    expect(done(second.page)).to_have_count(1)
    settle()
    assert second.rows_html() == first.rows_html()
    same_after_reload(first)

    # A decision that is made before the page is connected is sent later.
    second.page.close()
    page = first.page
    wire.enqueue(running("sleep 0.02; true"), Scenario(text="Slept."))
    first.send("Sleep")
    expect(card(page)).to_be_visible()

    def hold(line: WebSocketRoute) -> None:
        card(page).get_by_role("button", name="Approve").click()
        expect(card(page).get_by_role("button", name="Approve")).to_be_disabled()
        line.connect_to_server()

    page.route_web_socket(re.compile("/ws/"), hold)
    page.reload()
    expect(card(page)).to_have_count(0)
    first.wait_idle()
    expect(done(page)).to_have_count(2)


def test_output_is_shown_live_and_in_pages_and_can_be_copied_whole(
    open_chat: Callable[..., Chat], wire: WireThread
) -> None:
    chat = open_chat(permissions=["clipboard-read", "clipboard-write"]).new()
    wire.enqueue(
        running("echo first; for n in 1 2 3 4 5 6 7 8 9; do printf '\\r%s0 %%' $n; sleep 5; done"),
        Scenario(text="Stopped."),
    )
    chat.send("Run it")
    card(chat.page).get_by_role("button", name="Approve").click()
    page = chat.page
    live = page.locator("#rows .live")
    expect(live.locator("pre")).to_contain_text("first\n10 %")
    expect(page.locator("#rows .state").filter(has_text="Running")).to_be_visible()
    expect(page.locator("#status")).to_have_text("A tool is running")
    assert violations_light_and_dark(page, "tool-running", within=".live, #status") == []
    page.reload()
    expect(live.locator("pre")).to_contain_text("first")
    expect(page.locator("#status")).to_have_text("A tool is running")
    press_while_it_moves(live.get_by_role("button", name="Cancel"))
    expect(done(page).locator(".state")).to_have_text("Stopped")
    chat.wait_idle()
    expect(live).to_have_count(0)
    same_after_reload(chat)

    wire.enqueue(running("seq -f 'number %g' 900 | cat"), Scenario(text="Counted."))
    chat.send("Count")
    page.get_by_role("button", name="Approve", exact=True).click()
    chat.wait_idle()
    done(page).last.locator("summary").click()
    output = done(page).last.locator("pre").last
    expect(output).to_contain_text("number 200")
    done(page).last.get_by_role("link", name="Show more").click()
    expect(output).to_contain_text("number 400")
    done(page).last.get_by_role("button", name="Copy").last.click()
    expect(page.locator("#announce")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip().endswith("number 900")
    done(page).last.get_by_role("link", name="Call details").click()
    panel = page.locator("#panel .output")
    expect(panel).to_contain_text("number 200")
    panel.get_by_role("link", name="Show more").click()
    expect(panel).to_contain_text("number 400")
    page.goto(page.locator("#panel-page").evaluate("link => link.href"))
    page.get_by_role("link", name="Show more").click()
    expect(page.locator(".output")).to_contain_text("number 400")
    expect(page.locator(".output")).not_to_contain_text("number 200\n")
    assert violations(page) == []


def test_questions_are_answered_one_by_one_and_do_not_interrupt_typing(
    chat: Chat, wire: WireThread
) -> None:
    look = ToolCall(name="list_files", input={"path": "."})
    each = (*writing("one.txt").tools, *running("echo two").tools, look)
    calls = tuple(ToolCall(name=c.name, input=c.input, id=f"q{n}") for n, c in enumerate(each))
    wire.enqueue(Scenario(tools=calls), Scenario(text="All done."))
    chat.send("Do both, then look")
    page = chat.page
    expect(card(page)).to_have_count(2)
    behind = page.locator('#rows > [data-step="1"]:not(.settled) .state')
    expect(behind).to_have_text("Waiting")
    page.reload()
    expect(behind).to_have_text("Waiting")
    card(page).first.get_by_role("button", name="Deny").click()
    expect(card(page)).to_have_count(1)
    expect(card(page).locator(".ask")).to_be_focused()
    card(page).get_by_role("button", name="Approve").click()
    chat.wait_idle()
    expect(done(page).locator(".state")).to_have_text(["Denied", "Done", "Done"])
    expect(chat.message).to_be_focused()
    same_after_reload(chat)

    wire.enqueue(Scenario(tools=tuple(replace(c, id=f"again-{c.id}") for c in calls)))
    wire.enqueue(Scenario(text="Both."))
    chat.send("Once more")
    expect(card(page)).to_have_count(2)
    settle(0.6)  # "Approve all" skips questions that have just appeared
    page.get_by_role("button", name="Approve all (2)").click()
    chat.wait_idle()
    expect(done(page).locator(".state")).to_have_text(["Denied", *["Done"] * 5])
    expect(page.get_by_role("button", name="Approve all")).to_be_hidden()

    # The person can jump to a question that is out of view.
    wire.enqueue(Scenario(words=900))
    chat.ask("Say much")
    wire.enqueue(writing("later.txt"), Scenario(text="Fine."))
    chat.send("Write it")
    expect(card(chat.page)).to_be_visible()
    jump = chat.page.get_by_role("button", name="Jump to the request")
    expect(jump).to_be_hidden()
    chat.page.evaluate("document.querySelector('#transcript').scrollTop = 0")
    expect(jump).to_be_visible()
    jump.click()
    expect(card(chat.page).locator(".ask")).to_be_focused()
    expect(jump).to_be_hidden()
    card(chat.page).get_by_role("button", name="Deny").press("Enter")
    chat.wait_idle()

    # Typing while a question has the focus writes to the composer and does not answer.
    wire.enqueue(writing("begun.txt"), Scenario(text="Fine."))
    chat.send("Write it")
    expect(card(chat.page).locator(".ask")).to_be_focused()
    chat.page.keyboard.type("then this ")
    expect(chat.message).to_have_value("then this ")
    expect(card(chat.page)).to_be_visible()
    card(chat.page).get_by_role("button", name="Deny").click()
    chat.wait_idle()

    # A new question does not take the focus from a person who is typing.
    wire.enqueue(
        Scenario(text="x", first_delay=1, tools=writing("typed.txt").tools), Scenario(text="Fine.")
    )
    chat.message.fill("")
    chat.send("Write it")
    chat.message.type("the next thought")
    expect(card(chat.page)).to_be_visible()
    settle(0.5)
    expect(chat.message).to_be_focused()
    expect(chat.message).to_have_value("the next thought")
    card(chat.page).get_by_role("button", name="Deny").click()
    chat.wait_idle()
