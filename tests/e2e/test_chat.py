"""Chats with the model in a real browser."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from conversations.domain.errors import DATABASE_UNAVAILABLE
from conversations.rendering.streaming import BlockStream
from conversations.runtime.drafts import LiveBlock
from tests.e2e.conftest import (
    NARROW,
    Chat,
    Server,
    long_session,
    settle,
    take_both_pictures,
    take_picture,
    wait_until,
)
from tests.e2e.line import Frame, Line
from tests.e2e.test_attachments import choose, there, tray
from tests.wire.scenario import Scenario, ToolCall, make_words
from tests.wire.server import WireThread

RICH = """\
# A heading

Some **bold** and `code`, a [link](https://example.org/x).

| name | count |
|:-----|------:|
| beans | 12 |

```python
def plant(what: str) -> None:
    print(f"planting {what}")
```

1. first
2. second

> quoted
"""


def test_rows_are_byte_identical_in_two_tabs_and_after_a_reload(
    server: Server, chat: Chat, open_chat: Callable[..., Chat], wire: WireThread
) -> None:
    """The rows include messages that another process has written."""
    other = open_chat().open(chat.uuid).wait_connected()
    wire.enqueue(Scenario(text="From the terminal."))
    server.manage("send", "--session", chat.uuid, "typed in a terminal")
    expect(chat.page.locator("#rows")).to_contain_text("From the terminal.")
    expect(chat.rows).to_have_count(3)
    chat.wait_idle()
    wire.enqueue(
        Scenario(
            text="I look first.",
            thinking="Where could it be?",
            tools=(ToolCall(name="look", input={"path": "src/a.py"}), ToolCall(name="dig")),
        ),
        Scenario(text=RICH, rate=150, chunk=9),
    )
    chat.ask("Show me everything\n\n```sh\nls -la\n```\nand __init__ stays as typed")
    wire.enqueue(Scenario(words=30, stop_reason="max_tokens"))
    chat.ask("And one that is cut")
    settle()
    live = chat.rows_html()
    assert {row.get_attribute("data-event-type") for row in chat.rows.all()} >= {
        "user_message",
        "assistant_text",
        "tool_call_started",
        "tool_call_completed",
        "info",
    }
    take_picture(chat.page, "rich-conversation")
    other.wait_idle()
    expect(other.rows).to_have_count(chat.rows.count())
    assert other.rows_html() == live
    chat.page.reload()
    settle()
    assert chat.rows_html() == live


def differing_frames(page: Page) -> Any:
    """Return the draft frames after which the page differs from the whole draft's HTML."""
    shown: list[dict[str, Any]] = []
    expected: list[str] = []
    code = "```py\n" + "x = '<&>' # 😀\n" * 300
    for number, text in enumerate((RICH * 2, code, "a & *b* 😀 c <d> e")):
        part = LiveBlock(number=number, kind="text", blocks=BlockStream())
        for start in range(0, len(text), 5):
            part.feed(text[start : start + 5])
            shown.append(part.frame("run"))
            assert part.blocks is not None
            expected.append("".join([*part.blocks.blocks, part.blocks.open_html()]))
    return page.evaluate(
        """async ([frames, expected]) => {
          const { writeDraft } = await import("/static/js/draft.js");
          const page = document.createElement("div");
          return frames.filter((frame, number) => {
            if (!writeDraft(frame)) return true;
            const part = [...document.querySelectorAll("#draft .md")].at(-1);
            page.innerHTML = expected[number];
            const live = part.cloneNode(true);
            for (const lines of live.querySelectorAll(".lines")) {
              lines.replaceWith(...lines.childNodes);
            }
            for (const code of live.querySelectorAll("pre > code")) code.removeAttribute("style");
            return [...live.children].map((block) => block.innerHTML).join("") !== page.innerHTML;
          });
        }""",
        [shown, expected],
    )


def test_an_answer_can_be_retried_streamed_stopped_and_continued(
    chat: Chat, wire: WireThread
) -> None:
    wire.enqueue(Scenario(status=529, retry_after="2", times=1, text="At last."))
    chat.send("hello")
    expect(chat.transcript).to_have_attribute("data-run-state", "retrying")
    expect(chat.page.get_by_text("Trying again in")).to_be_visible()
    expect(chat.page).to_have_title(re.compile(r"^\(…\) "))
    take_picture(chat.page, "retrying")
    expect(chat.page.locator("#rows")).to_contain_text("At last.")
    chat.wait_idle()
    expect(chat.page).to_have_title(re.compile(r"^hello"))

    wire.enqueue(
        Scenario(text=RICH + "\n\n" + "word " * 400, rate=60, chunk=8),
        Scenario(text="And here is the rest."),
    )
    chat.send("go")
    draft = chat.page.locator("#draft")
    expect(draft.locator("table")).to_be_visible()
    expect(draft.locator("pre code .k").first).to_be_visible()
    expect(chat.transcript).to_have_attribute("data-run-state", "running")
    expect(chat.page.get_by_role("button", name="Stop")).to_be_visible()
    take_picture(chat.page, "streaming")
    chat.page.keyboard.press("Escape")
    chat.wait_idle()
    expect(chat.rows.last).to_contain_text("stopped")
    take_picture(chat.page, "stopped")
    chat.page.get_by_role("button", name="Continue").last.click()
    expect(chat.page.locator("#rows")).to_contain_text("And here is the rest.")
    chat.wait_idle()
    assert differing_frames(chat.page) == []

    # New words change only the text of the page, not its attributes.
    wire.enqueue(Scenario(words=300, rate=60))
    chat.send("at length")
    expect(draft).to_contain_text("session")
    # The observer also reports an attribute that is set to the value that it already has.
    chat.page.evaluate("""() => {
      window.changed = [];
      new MutationObserver((found) => changed.push(...found.map(
        ({ target, attributeName }) => `${target.id || target.className}.${attributeName}`
      ))).observe(document.documentElement, { attributes: true, subtree: true });
    }""")
    settle(1.5)
    assert chat.page.evaluate("changed") == []
    assert chat.page.locator("#transcript").get_attribute("data-run-state") == "running"
    chat.page.keyboard.press("Escape")
    chat.wait_idle()


def test_retry_and_continue_are_offered_only_at_the_newest_end(
    chat: Chat, wire: WireThread
) -> None:
    wire.enqueue(Scenario(status=401), Scenario(text="Now it works."))
    chat.send("hello")
    retry = chat.page.get_by_role("button", name="Retry")
    expect(retry).to_be_visible()
    take_picture(chat.page, "failed")
    chat.send("/compact")
    expect(chat.page.locator("#rows")).to_contain_text("Nothing has changed.")
    chat.wait_idle()
    expect(retry).to_be_visible()
    retry.click()
    expect(chat.page.locator("#rows")).to_contain_text("Now it works.")
    expect(chat.page.locator("#rows")).to_contain_text("Earlier version")
    settle()
    live = chat.rows_html()
    chat.page.reload()
    settle()
    assert chat.rows_html() == live

    # Only the newest end of a session offers to continue or to retry.
    proceed = chat.page.get_by_role("button", name="Continue")
    wire.enqueue(Scenario(status=401), Scenario(status=401))
    chat.ask("apples").ask("pears")
    expect(retry).to_have_count(1)
    second = chat.rows.filter(has_text="pears").get_attribute("data-cursor")

    asked = len(wire.requests)
    wire.enqueue(Scenario(words=20, hang_after=9), Scenario(hang_after=0), Scenario(status=401))
    chat.send("cherries")
    expect(chat.page.locator("#draft .md")).to_contain_text("archive")
    chat.page.keyboard.press("Escape")
    expect(proceed).to_have_count(1)
    expect(retry).to_have_count(0)
    proceed.click()
    wait_until(lambda: len(wire.requests) == asked + 2)
    expect(chat.page.get_by_role("button", name="Stop")).to_be_visible()
    chat.page.keyboard.press("Escape")
    expect(chat.rows.filter(has_text="stopped")).to_have_count(2)
    expect(proceed).to_have_count(1)
    proceed.click()
    expect(chat.rows.last).to_contain_text("failed")
    expect(proceed).to_have_count(1)
    expect(retry).to_have_count(0)

    wire.enqueue(Scenario(words=20, stop_reason="max_tokens"))
    chat.ask("figs")
    expect(proceed).to_have_count(1)

    # The last row of a page without the newest rows is not the newest end.
    chat.page.route("**/?after=*", lambda route: None)  # the response does not arrive
    chat.page.goto(f"{chat.server.url}/s/{chat.uuid}/?before={second}")
    chat.wait_connected()
    expect(chat.rows.locator('[data-action="retry"]')).to_have_count(1)
    expect(retry).to_have_count(0)


def test_only_a_withdrawn_message_returns_to_the_composer(
    tab: Page, server: Server, wire: WireThread
) -> None:
    held: list[Frame] | None = None

    def hold(frame: Frame) -> Frame | None:
        if held is None:
            return frame
        held.append(frame)
        return None

    line = Line(tab, hold)
    chat = Chat(tab, server).new()
    long = Scenario(words=900, rate=8)
    wire.enqueue(long, Scenario(text="To two."), long, Scenario(text="To seven."))
    chat.send("one")
    expect(tab.locator("#draft .md")).to_contain_text("archive")
    chat.send("two")
    chat.send("three")
    chat.send("four")
    withdraw = tab.locator("#queue").get_by_role("button", name="Withdraw")
    expect(withdraw).to_have_count(3)
    # A person who can only read, or reads an expired session, gets no buttons to withdraw.
    chat.transcript.evaluate("(log) => { log.dataset.canWrite = false; }")
    expect(withdraw.first).to_be_hidden()
    chat.transcript.evaluate("(log) => { log.dataset.canWrite = true; }")
    withdraw.last.dblclick()
    expect(withdraw).to_have_count(2)
    expect(chat.message).to_have_value("four")
    chat.message.press("End")
    chat.message.press_sequentially("teen")
    withdraw.last.click()
    expect(withdraw).to_have_count(1)
    expect(chat.message).to_have_value("three\n\nfourteen")
    chat.send("five")
    expect(withdraw).to_have_count(2)

    held = []
    withdraw.last.click()
    settle()
    with line.cut():  # before the page learns that the message was withdrawn
        held = None
        expect(tab.get_by_role("alert")).to_be_visible()
        withdraw.last.click()
    expect(chat.message).to_have_value("five")
    expect(withdraw).to_have_count(1)
    expect(tab.locator("#refused")).to_be_hidden()
    chat.message.fill("")

    held = []
    other = tab.context.new_page()
    other.goto(tab.url)
    Chat(other, server).wait_connected()
    other.get_by_role("button", name="Stop and send").click()
    expect(other.locator("#rows")).to_contain_text("To two.")
    withdraw.click()
    settle()
    late, held = held, None
    for message in late:
        line.send(message)
    expect(tab.get_by_role("alert")).to_have_text("This message is no longer queued.")
    expect(chat.message).to_have_value("")

    chat.wait_idle().send("six")
    expect(tab.locator("#draft .md")).to_contain_text("archive")
    chat.send("seven")
    expect(withdraw).to_have_count(1)
    with line.cut():
        withdraw.click()
        other.get_by_role("button", name="Stop and send").click()
        expect(other.locator("#rows")).to_contain_text("To seven.")
    expect(tab.locator("#rows")).to_contain_text("To seven.")
    expect(withdraw).to_have_count(0)
    expect(chat.message).to_have_value("")

    # The server never receives the withdrawal: after the greeting the message is still queued.
    line.answer = lambda sent: {"type": "late"} if sent["type"] == "withdraw" else None
    wire.enqueue(long)
    chat.wait_idle().send("eight")
    expect(tab.locator("#draft .md")).to_contain_text("archive")
    chat.send("nine")
    withdraw.click()
    with line.cut():
        expect(tab.get_by_role("alert")).to_be_visible()
    chat.send("ten")
    expect(withdraw).to_have_count(2)
    expect(chat.message).to_have_value("")
    theirs = other.locator("#queue").get_by_role("button", name="Withdraw")
    theirs.first.click()
    expect(withdraw).to_have_count(1)
    expect(chat.message).to_have_value("nine")
    full = "There are already too many messages queued."
    line.answer = lambda sent: (
        {"type": "error", "client_id": sent["client_id"], "code": "queue_full", "message": full}
        if sent["type"] == "send"
        else None
    )
    chat.send("eleven")
    expect(tab.get_by_role("alert")).to_have_text(full)
    theirs.click()
    expect(tab.locator("#refused")).to_be_hidden()
    expect(chat.message).to_have_value("eleven")
    expect(other.locator("#queue > *")).to_have_count(0)  # or it takes the next test's answer
    other.keyboard.press("Escape")
    chat.wait_idle()


def test_the_end_of_one_refusal_does_not_hide_a_later_one(tab: Page, server: Server) -> None:
    line = Line(tab)
    chat = Chat(tab, server).new()
    full = {"type": "error", "code": "queue_full", "message": "Too many."}
    line.answer = lambda sent: (
        full | {"client_id": sent["client_id"]} if sent["type"] == "send" else None
    )
    chat.send("one")
    expect(tab.get_by_role("alert")).to_have_text("Too many.")
    tab.locator("#composer").evaluate("(form) => { form.dataset.max = 1; }")
    chat.message.press("Enter")
    expect(tab.get_by_role("alert")).to_contain_text("too long")
    line.send({"type": "queue", "items": [], "html": ""})
    line.send({"type": "title", "title": "After the queue"})
    expect(tab.get_by_role("heading", level=1)).to_have_text("After the queue")
    expect(tab.get_by_role("alert")).to_contain_text("too long")


def test_a_queued_message_can_be_put_first_sent_at_once_or_withdrawn(
    chat: Chat, wire: WireThread
) -> None:
    wire.enqueue(Scenario(words=900, rate=8), Scenario(text="To three."), Scenario(text="To two."))
    chat.send("one")
    expect(chat.page.locator("#draft .md")).to_contain_text("archive")
    chat.send("two")
    chat.page.get_by_label("Message", exact=True).fill("three")
    chat.page.keyboard.press("Alt+Enter")
    queue = chat.page.get_by_role("list", name="Queued messages").get_by_role("listitem")
    expect(queue).to_contain_text(["three", "two"])
    expect(queue.first).to_contain_text("Next")
    take_picture(chat.page, "queued-next")
    chat.send("four")
    expect(queue).to_have_count(3)
    queue.filter(has_text="four").get_by_role("button", name="Withdraw").click()
    expect(queue).to_have_count(2)
    queue.first.get_by_role("button", name="Stop and send").click()
    said = chat.page.locator('[data-event-type="assistant_text"]')
    expect(said).to_contain_text(["archive", "To three.", "To two."])
    chat.wait_idle()
    expect(chat.page.locator("#rows")).not_to_contain_text("four")


def test_versions_are_shown_in_place_and_can_be_used_again_or_forked(
    chat: Chat, wire: WireThread
) -> None:
    """An edited message and a regenerated answer have versions, live and after a reload."""
    page = chat.page
    long = "About beans.\n\n" + "Beans climb.\n\n" * 60
    texts = (long, "About peas.", "About peas, again.", "And water.", "And beans' water.")
    wire.enqueue(*[Scenario(text=text) for text in texts])
    chat.ask("beans")
    page.locator('[data-event-type="user_message"]').hover()
    page.get_by_role("button", name="Edit").click()
    page.locator("#rows textarea").fill("peas")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#rows")).to_contain_text("About peas.")
    expect(page.locator("#rows")).not_to_contain_text("beans")
    [question] = [message["content"] for message in wire.requests[-1]["messages"]]
    assert question[0]["text"] == "peas"
    assert "beans" not in str(question)
    versions = page.locator("#rows").get_by_role("group", name="Versions")
    expect(versions).to_have_text(["‹2/2›"])
    held: list[Route] = []  # the answer arrives before the numbers of the versions
    page.route("**/versions/", lambda route: held.append(route), times=1)
    page.get_by_role("button", name="Regenerate").last.press("Enter")
    expect(chat.message).to_be_focused()
    expect(page.locator("#rows")).to_contain_text("About peas, again.")
    chat.wait_idle()
    for route in held:
        route.continue_()
    expect(versions).to_have_text(["‹2/2›", "‹2/2›"])
    chat.ask("water?")
    for _ in range(2):
        expect(versions).to_have_text(["‹2/2›", "‹2/2›"])
        page.reload()
    take_both_pictures(page, "versions")
    # Show the other version of the answer, then of the message.
    versions.last.get_by_role("button", name="Earlier version").press("Enter")
    section = page.get_by_role("region", name="Another version")
    expect(section).to_contain_text("Version 1 of 2.")
    expect(section).to_contain_text("About peas.")
    expect(page.locator("#rows").get_by_text("And water.")).to_be_hidden()
    section.get_by_role("button", name="Later version").press("Enter")
    expect(section).to_have_count(0)
    expect(page.locator("#rows").get_by_text("And water.")).to_be_visible()
    versions.first.get_by_role("button", name="Earlier version").press("Enter")
    expect(section).to_contain_text("About beans.")
    expect(section.get_by_role("button", name="Use this version")).to_be_in_viewport()
    take_both_pictures(page, "version-shown")
    section.get_by_role("button", name="Back").press("Enter")
    expect(section).to_have_count(0)
    versions.first.get_by_role("button", name="Earlier version").press("Enter")
    section.get_by_role("button", name="Use this version").press("Enter")
    expect(versions).to_have_text(["‹1/2›"])
    expect(page.locator("#rows")).not_to_contain_text("peas")
    chat.ask("And its water?")
    assert [message["content"][0]["text"] for message in wire.requests[-1]["messages"]] == [
        "beans",
        long,
        "And its water?",
    ]
    page.get_by_label("Actions for this session").click()
    page.get_by_role("link", name="Branches").click()
    branches = page.locator("#panel").get_by_role("listitem")
    expect(branches).to_contain_text(["peas", "peas"])
    take_both_pictures(page, "branches")
    branches.first.get_by_role("button", name="Use this version").click()
    expect(page.locator("#rows")).to_contain_text("And water.")
    expect(page.locator("#rows")).to_contain_text("About peas, again.")
    versions.last.get_by_role("button", name="Earlier version").press("Enter")
    expect(section).to_contain_text("About peas.")
    chat.ask("And lentils?")
    expect(section).to_have_count(0)
    versions.last.get_by_role("button", name="Earlier version").press("Enter")
    expect(section).to_contain_text("About peas.")
    wire.enqueue(Scenario(text="About green peas."))
    page.get_by_role("button", name="Edit").press("Enter")
    page.locator("#rows textarea").fill("green peas")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#rows")).to_contain_text("About green peas.")
    expect(section).to_have_count(0)

    # A fork continues from an answer.
    here, title = page.url, page.get_by_role("heading", level=1).inner_text()
    page.locator('[data-event-type="assistant_text"]').first.hover()
    page.get_by_role("link", name="Fork from here").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{title} (fork)")
    expect(page.locator("#rows")).to_contain_text("About green peas.")
    expect(page.locator("#rows")).not_to_contain_text("water")
    branched = page.get_by_text("Branched off")
    expect(branched).to_contain_text(re.compile(rf"{title} after turn \d+"))
    wire.enqueue(Scenario(text="As before."))
    chat.ask("third")
    texts = [message["content"][-1]["text"] for message in wire.requests[-1]["messages"]]
    assert [texts[0], texts[1]] == ["green peas", "About green peas."]
    assert not [text for text in texts if "water" in text or "lentils" in text]
    page.get_by_role("link", name=title, exact=True).last.click()
    page.wait_for_url(re.compile(rf"^{re.escape(here)}t/\d+/$"))


def test_text_that_is_not_sent_stays_in_the_composer(chat: Chat) -> None:
    chat.message.fill("half a thought")
    example = chat.page.locator("#welcome button").first
    example.click()
    expect(chat.message).to_have_value(f"half a thought\n\n{example.inner_text()}")
    chat.message.press("Control+z")
    expect(chat.message).to_have_value("half a thought")
    settle()
    chat.page.reload()
    expect(chat.message).to_have_value("half a thought")
    alert = chat.page.get_by_role("alert")
    chat.send("x" * 40_002)
    expect(alert).to_have_text("The message is 2 characters too long. At most 40 000 fit.")
    chat.message.press("Backspace")
    expect(alert).to_be_visible()
    chat.message.press("Backspace")
    expect(alert).to_be_hidden()
    # Enter during a composition of an input method does not send the message.
    chat.message.fill("にほん")
    chat.message.dispatch_event("keydown", {"key": "Enter", "isComposing": True, "bubbles": True})
    chat.message.dispatch_event("keydown", {"key": "Enter", "keyCode": 229, "bubbles": True})
    settle()
    expect(chat.message).to_have_value("にほん")
    chat.message.press("Shift+Enter")
    expect(chat.message).to_have_value("にほん\n")
    chat.message.evaluate("field => { field.value = 'half \\ud83d of it'; }")
    chat.message.press("Enter")
    expect(chat.page.get_by_text("Half a surrogate pair is not a valid character")).to_be_visible()
    assert chat.message.evaluate("field => field.value === 'half \\ud83d of it'")
    expect(chat.rows).to_have_count(0)
    expect(chat.page.locator("#pending > *")).to_have_count(0)


@pytest.mark.noisy  # the browser reports the failed requests
def test_the_model_menu_shows_the_model_that_is_used(chat: Chat, wire: WireThread) -> None:
    """The menu also shows a model in use that it does not offer otherwise."""
    page = chat.page
    model = page.get_by_label("Model", exact=True)
    expect(model).to_have_value("claude-sonnet-5-5")
    page.route("**/model/", lambda route: route.abort())
    model.select_option("claude-haiku-5-5")
    expect(page.get_by_role("alert")).to_have_text("Not connected. Try again in a moment.")
    expect(model).to_have_value("claude-sonnet-5-5")
    page.unroute("**/model/")

    other, dated = page.context.new_page(), "claude-haiku-5-5-20260915"
    Line(other, lambda one: {"type": "model", "model": dated} if one["type"] == "window" else one)
    other.goto(page.url)
    expect(other.get_by_label("Model", exact=True)).to_have_value(dated)
    other.get_by_label("Model", exact=True).select_option("claude-haiku-5-5")
    expect(model).to_have_value("claude-haiku-5-5")
    wire.enqueue(Scenario(text="I am."))
    chat.ask("Which are you?")
    assert wire.requests[-1]["model"] == "claude-haiku-5-5"
    page.route("**/model/", lambda route: route.fulfill(status=500))
    model.select_option("claude-sonnet-5-5")
    expect(page.get_by_role("alert")).to_have_text(re.compile("^The server could not do this"))
    expect(model).to_have_value("claude-haiku-5-5")
    page.unroute("**/model/")
    page.context.clear_cookies(name="loom_session")
    model.select_option("claude-sonnet-5-5")
    expect(page.get_by_role("alert")).to_have_text(re.compile("^You are signed out."))
    expect(model).to_have_value("claude-haiku-5-5")


def test_loading_older_rows_does_not_jump_and_drops_the_newest_rows(
    server: Server, open_chat: Callable[..., Chat], wire: WireThread
) -> None:
    """The dropped rows can be loaded again.

    The view follows new rows only at the bottom. A permalink opens the page around its turn.
    """
    uuid = long_session(server, turns=220)
    chat = open_chat().open(uuid)
    expect(chat.rows).to_have_count(50)
    expect(chat.rows.last).to_contain_text("Row number 220")
    take_picture(chat.page, "long-session")
    chat.page.evaluate("document.querySelector('#transcript').scrollTop = 900")
    settle()
    anchor = chat.page.locator('[data-seq="190"]')
    before = anchor.bounding_box()
    chat.page.get_by_role("button", name="Load older").dispatch_event("click")
    expect(chat.page.locator('[data-seq="140"]')).to_be_attached()
    settle()
    after = anchor.bounding_box()
    assert before is not None
    assert after is not None
    assert abs(before["y"] - after["y"]) < 2
    chat.page.get_by_role("button", name="Jump to latest").click()
    expect(chat.rows.last).to_be_in_viewport()

    first, last = (chat.page.locator(f'[data-seq="{seq}"]') for seq in (1, 220))
    chat.load("Load older", lambda: first.count() > 0)
    wait_until(lambda: chat.rows.count() <= 151)
    seqs = chat.rows.evaluate_all("rows => rows.map((row) => +row.dataset.seq)")
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    chat.load("Load newer", lambda: last.count() > 0)
    chat.page.get_by_role("button", name="Jump to latest").click()
    expect(chat.rows.last).to_be_in_viewport()
    follow_only_at_the_bottom(chat, wire)
    the_end_of_an_answer_moves_nothing(chat, wire)
    permalink_opens_the_page_around_its_turn(chat, uuid, wire)


def permalink_opens_the_page_around_its_turn(chat: Chat, uuid: str, wire: WireThread) -> None:
    chat.open(uuid, "t/100/")
    expect(chat.page.locator('[data-turn="100"]')).to_be_in_viewport()
    expect(chat.page.get_by_role("button", name="Load older")).to_be_attached()
    expect(chat.page.get_by_role("button", name="Load newer")).to_be_attached()
    take_picture(chat.page, "permalink")
    settle(1.5)
    expect(chat.page.locator('[data-turn="100"]')).to_be_in_viewport()
    expect(chat.page.locator('[data-seq="220"]')).not_to_be_attached()

    other = Chat(chat.page.context.new_page(), chat.server).open(uuid).wait_connected()
    wire.enqueue(Scenario(words=900, rate=8), Scenario(text="To this."))
    other.send("one")
    expect(other.page.locator("#draft .md")).to_contain_text("archive")
    choose(other.page, ("later.txt", b"later"))
    there(other.page, 1)
    other.send("and this")
    chat.page.route("**/attach*.js", lambda route: None)  # the script does not arrive
    chat.page.locator("#queue").get_by_role("button", name="Withdraw").click()
    expect(chat.message).to_have_value("and this")
    settle()
    expect(chat.page.locator('[data-turn="100"]')).to_be_in_viewport()
    chat.page.unroute_all()
    chat.page.reload()
    expect(tray(chat.page)).to_contain_text("later.txt")
    chat.message.press("Enter")
    chat.page.wait_for_url(f"**/s/{uuid}/")
    other.message.press("Escape")
    expect(chat.rows.last).to_be_in_viewport()
    expect(chat.page.locator("#rows")).to_contain_text("To this.")
    expect(chat.page.locator("#rows")).to_contain_text("later.txt")
    chat.wait_idle()


def follow_only_at_the_bottom(chat: Chat, wire: WireThread) -> None:
    wire.enqueue(Scenario(words=900, rate=20))
    chat.send("go")
    expect(chat.page.locator("#draft .md")).to_contain_text("archive")
    chat.send("and this")
    withdraw = chat.page.locator("#queue").get_by_role("button", name="Withdraw")
    expect(withdraw).to_be_visible()
    chat.transcript.hover()
    chat.page.mouse.wheel(0, -900)
    settle()
    top = chat.page.evaluate("document.querySelector('#transcript').scrollTop")
    withdraw.click()
    expect(chat.message).to_have_value("and this")
    settle(1)
    assert abs(chat.page.evaluate("document.querySelector('#transcript').scrollTop") - top) < 2
    pill = chat.page.get_by_role("button", name="Jump to latest")
    expect(pill).to_be_visible()
    pill.click()
    chat.message.press("Escape")
    chat.wait_idle()
    expect(chat.rows.last).to_be_in_viewport()


def the_end_of_an_answer_moves_nothing(chat: Chat, wire: WireThread) -> None:
    """The scroll position, selection, focus and open details stay when an answer ends."""
    words = make_words(600)
    text = f"{words}\n\n```py\nhere = 1\n```\n\nMarked *and* **read**.\n\n{words}"
    wire.enqueue(Scenario(thinking=400, text=text, chunk=40, ahead=190, rate=1))
    chat.send("go")
    draft = chat.page.locator("#draft")
    draft.locator(".blk").nth(15).wait_for()
    chat.transcript.hover()
    chat.page.mouse.wheel(0, -300)
    settle()
    draft.locator(".think").evaluate("(one) => { one.open = true; }")
    read = draft.locator("p", has_text="Marked and read.")
    read.evaluate("(one) => getSelection().selectAllChildren(one)")
    draft.get_by_role("button", name="Copy").focus()
    read.evaluate("(one) => one.scrollIntoView({ block: 'center' })")
    settle()
    before = read.bounding_box()
    chat.page.keyboard.press("Escape")
    chat.wait_idle()
    settle()
    row = chat.page.locator("#rows .row-assistant").last
    after = row.locator("p", has_text="Marked and read.").bounding_box()
    assert before is not None
    assert after is not None
    assert abs(before["y"] - after["y"]) < 2
    assert chat.page.evaluate("getSelection().toString()") == "Marked and read."
    expect(row.get_by_role("button", name="Copy").first).to_be_focused()
    expect(row.locator(".think")).to_have_attribute("open", "")


def test_the_end_of_an_answer_does_not_extend_the_selection(
    tab: Page, server: Server, wire: WireThread
) -> None:
    """The selection may reach beyond the text, and the draft may end without any rows."""
    line = Line(tab)
    chat = Chat(tab, server).new()
    wire.enqueue(Scenario(words=900, rate=8))
    chat.send("go")
    draft = tab.locator("#draft")
    select = """(draft) => getSelection().setBaseAndExtent(
      draft.querySelector("p").firstChild, 4, draft, draft.childNodes.length
    )"""
    for is_cut in (True, False):
        expect(draft.locator("p")).to_contain_text("archive keeps")
        written = draft.locator("p").element_handle()
        draft.evaluate(select)
        if is_cut:
            line.send({"type": "rows", "rows": [], "ends_draft": "*"})
        else:
            chat.page.keyboard.press("Escape")
            chat.wait_idle()
        tab.wait_for_function("(written) => !written.isConnected", arg=written)
        selected = tab.evaluate("getSelection().toString()")
        assert selected.startswith("" if is_cut else "archive keeps")
        assert bool(selected) != is_cut


def test_the_focus_moves_to_the_composer_unless_a_person_has_moved_it(
    tab: Page, server: Server, wire: WireThread
) -> None:
    held: list[Frame] = []

    def hold(frame: Frame) -> Frame | None:
        if frame["type"] != "ack":
            return frame
        held.append(frame)
        return None

    def refuse(asked: Frame) -> Frame | None:
        if asked["type"] != "withdraw":
            return None
        line.send({"type": "queue", "items": [], "html": ""})
        return {"type": "error", "client_id": asked["client_id"], "message": "It has begun."}

    line = Line(tab)
    chat = Chat(tab, server).new()
    wire.enqueue(Scenario(text="One."), Scenario(text="Two."), Scenario(words=900, rate=8))
    chat.ask("go")
    line.change = hold
    tab.get_by_role("button", name="Regenerate").press("Enter")
    expect(tab.locator("#rows")).to_contain_text("Two.")
    chat.wait_idle()
    chat.transcript.focus()
    line.change = lambda frame: frame
    line.send(held[0])
    line.send({"type": "title", "title": "After the answer"})
    expect(tab.get_by_role("heading", level=1)).to_have_text("After the answer")
    expect(chat.transcript).to_be_focused()

    # The button is removed before the page learns that the withdrawal was too late.
    chat.send("more")
    expect(tab.locator("#draft .md")).to_contain_text("archive")
    chat.send("and this")
    line.answer = refuse
    tab.locator("#queue").get_by_role("button", name="Withdraw").press("Enter")
    expect(tab.get_by_role("alert")).to_have_text("It has begun.")
    expect(chat.message).to_be_focused()
    line.answer = lambda asked: None
    tab.reload()
    tab.locator("#queue").get_by_role("button", name="Withdraw").click()
    expect(tab.locator("#queue > *")).to_have_count(0)  # or it takes the next test's answer
    chat.message.press("Escape")
    chat.wait_idle()


def test_a_refused_message_is_left_out_until_it_is_included_again(
    chat: Chat, open_chat: Callable[..., Chat], wire: WireThread
) -> None:
    wire.enqueue(Scenario(text="Hello."), Scenario(status=400, error_message="messages: no"))
    chat.ask("apples").ask("bombs")
    notice = chat.page.locator('#rows [data-code="set_aside"]')
    expect(notice).to_contain_text("Turn 3 is not sent to the model with later messages")
    expect(chat.page.get_by_role("button", name="Retry")).to_be_visible()
    take_both_pictures(chat.page, "refused-last-wide")
    wire.enqueue(Scenario(text="Red ones."))
    chat.ask("cherries")
    assert "bombs" not in str(wire.requests[-1]["messages"])
    take_both_pictures(chat.page, "refused-wide")
    chat.page.set_viewport_size(NARROW)
    take_both_pictures(chat.page, "refused-narrow")
    assert not chat.page.evaluate("document.documentElement.scrollWidth > innerWidth")
    plain = open_chat(java_script_enabled=False).open(chat.uuid)
    plain.page.get_by_role("button", name="Include it again").press("Enter")
    told = "Turn 3 is sent to the model again, as far as there is room."
    expect(plain.page.get_by_text(told)).to_be_visible()
    expect(chat.page.get_by_text(told)).to_be_visible()
    chat.page.get_by_role("button", name="Include it again").press("Enter")
    expect(chat.page.get_by_text("This message is already included.")).to_be_visible()
    take_both_pictures(chat.page, "refused-included-narrow")
    wire.enqueue(Scenario(text="All of them."))
    chat.ask("dates")
    assert "bombs" in str(wire.requests[-1]["messages"])


def test_a_page_recovers_from_a_lost_connection_and_from_lost_frames(
    tab: Page, server: Server, open_chat: Callable[..., Chat], wire: WireThread
) -> None:
    line = Line(tab)
    chat = Chat(tab, server).new()
    wire.enqueue(Scenario(thinking=400, text="never", rate=15), Scenario(words=400, rate=15))
    chat.send("Think")
    expect(tab.locator("#draft .think .md")).not_to_be_empty()
    with line.cut():
        other = open_chat().open(chat.uuid).wait_connected()
        other.page.get_by_role("button", name="Stop").click()
        other.wait_idle().send("Write")
        expect(other.page.locator("#draft > .row > .md")).to_contain_text("archive")
    expect(tab.locator("#draft > .row > .md")).to_contain_text("archive")
    expect(tab.locator("#draft .think")).to_have_count(0)
    other.page.get_by_role("button", name="Stop").click()
    chat.wait_idle()
    expect(tab.locator("#draft > *, #rows > .draft")).to_have_count(0)
    live = chat.rows_html()
    tab.reload()
    chat.wait_connected()
    assert live == chat.rows_html()

    # A lost row is requested even if the page has just requested something else.
    changed: list[str] = []

    def lose_some(frame: Frame) -> Frame | None:
        kind = frame["type"]
        if kind == "draft" and not changed:
            changed.append(kind)
            return frame | {"offset": 999}  # the page requests the draft again
        if kind == "rows" and changed == ["draft"]:
            changed.append(kind)
            return None
        return frame

    line.change = lose_some
    look = ToolCall(name="list_files", input={"path": "."})
    wire.enqueue(Scenario(text="I look.", tools=(look,)), Scenario(text="Nothing there."))
    chat.send("Look")
    expect(tab.locator("#rows")).to_contain_text("Nothing there.")
    chat.wait_idle()
    expect(tab.locator("#rows")).to_contain_text("I look.")
    assert changed == ["draft", "rows"]


def test_a_lost_connection_does_not_move_a_person_who_reads_a_running_answer(
    tab: Page, server: Server, wire: WireThread
) -> None:
    seen: list[str] = []

    def note(frame: Frame) -> Frame:
        seen.append(frame["type"])
        return frame

    line = Line(tab, change=note)
    chat = Chat(tab, server).new()
    text = "\n\n".join([make_words(60)] * 40)
    wire.enqueue(Scenario(thinking=40, text=text, chunk=40, ahead=200, rate=1))
    chat.send("go")
    draft = tab.locator("#draft")
    draft.locator(".blk").nth(10).wait_for()
    draft.locator(".think").evaluate("(one) => { one.open = true; }")
    chat.transcript.hover()
    tab.mouse.wheel(0, -600)
    settle()
    top = "document.querySelector('#transcript').scrollTop"
    before = tab.evaluate(top)
    seen.clear()
    with line.cut():
        pass
    while seen[-1:] != ["draft"]:
        tab.wait_for_timeout(20)
    settle()
    assert "hello" in seen
    assert abs(tab.evaluate(top) - before) < 2
    expect(draft.locator(".think")).to_have_attribute("open", "")
    chat.message.press("Escape")
    chat.wait_idle()
    expect(draft.locator("*")).to_have_count(0)


def test_messages_keep_their_order_across_a_lost_connection(tab: Page, server: Server) -> None:
    line = Line(tab)
    chat = Chat(tab, server).new()
    line.break_off()
    chat.send("First")
    while not line.waits_for_greeting:
        tab.wait_for_timeout(20)
    chat.send("Second")
    tab.wait_for_timeout(200)
    line.greet()
    said = tab.locator('#rows [data-event-type="user_message"]')
    expect(said).to_have_count(2)
    chat.wait_idle()
    assert [text.split()[0] for text in said.all_inner_texts()] == ["First", "Second"]
    page, url = tab.context.new_page(), tab.url
    with line.cut():  # the next page of the session sends messages that a closed page could not
        chat.send("Third").send("Fourth")
        tab.close()
    page.goto(url)
    said = page.locator('#rows [data-event-type="user_message"]')
    expect(said).to_have_count(4)
    Chat(page, server).wait_idle()
    order = ["First", "Second", "Third", "Fourth"]
    assert [text.split()[0] for text in said.all_inner_texts()] == order
    expect(page.locator("#pending > *")).to_have_count(0)
    assert page.evaluate("Object.keys(localStorage)") == []


def test_a_refused_message_stays_visible_in_an_archived_session(tab: Page, server: Server) -> None:
    line = Line(tab)
    chat = Chat(tab, server).new()
    line.break_off()
    chat.send("Not to be lost")
    server.manage("shell", "-c", ARCHIVE.format(uuid=chat.uuid))
    line.greet()
    tab.reload()
    expect(tab.get_by_text("This session is archived.")).to_be_visible()
    expect(tab.locator("#pending")).to_contain_text("Not to be lost")
    tab.wait_for_timeout(500)
    expect(tab.locator("#pending")).to_contain_text("Not to be lost")


ARCHIVE = """
from conversations.archive.sessions import archive_session, get_session
archive_session(get_session("{uuid}"), archived=True)
"""


def test_refused_messages_return_to_the_composer_in_order(tab: Page, server: Server) -> None:
    line = Line(tab)
    chat = Chat(tab, server).new()
    line.break_off()
    chat.send("First")
    chat.send("Second")
    chat.message.fill("and a third")
    other = Chat(tab.context.new_page(), server)
    others_line = Line(other.page)
    others_line.is_held = True
    other.open(chat.uuid)
    expect(other.page.locator("#pending")).to_contain_text("Second")
    server.manage("shell", "-c", ARCHIVE.format(uuid=chat.uuid))
    line.greet()
    expect(chat.message).to_have_value("First\n\nSecond\n\nand a third")
    others_line.greet()  # the other page does not send the messages that were returned here
    expect(other.page.locator("#pending > *")).to_have_count(0)
    expect(other.message).to_have_value("")


def test_messages_are_sent_once_and_in_order_after_a_database_outage(
    tab: Page, server: Server, wire: WireThread
) -> None:
    lost: list[str] = []
    is_away = True

    def problem(frame: Frame) -> Frame:
        lost.append(frame["type"])
        return {
            "type": "error",
            "client_id": frame["client_id"],
            "code": DATABASE_UNAVAILABLE,
            "message": "The database is not responding at the moment.",
        }

    def lose_what_is_sent(frame: Frame) -> Frame | None:
        return problem(frame) if frame["type"] == "send" and is_away else None

    def lose_its_answer(frame: Frame) -> Frame | None:
        return problem(frame) if frame["type"] == "ack" and "ack" not in lost else frame

    line = Line(tab, lose_its_answer, lose_what_is_sent)
    chat = Chat(tab, server).new()
    answers = "Heard once.", "And this.", "Nothing since."
    wire.enqueue(*(Scenario(text=text) for text in answers))
    chat.send("Say it once")
    refusal = tab.get_by_role("alert").filter(has_text="not responding")
    expect(refusal).to_be_visible()
    take_picture(tab, "database-away")
    chat.send("Say this once, too")
    expect(refusal).to_be_visible()
    is_away = False
    expect(tab.locator("#rows")).to_contain_text("Heard once.")
    expect(tab.locator("#rows")).to_contain_text("And this.")
    expect(refusal).to_be_hidden()
    expect(chat.message).to_have_value("")
    expect(tab.locator("#pending > *")).to_have_count(0)
    chat.wait_idle()
    chat.ask("And this")
    said = tab.locator('#rows [data-event-type="user_message"]')
    texts = [text.split("\n")[0] for text in said.all_inner_texts()]
    assert texts == ["Say it once", "Say this once, too", "And this"]
    assert lost[:2] == ["send", "send"]
    assert lost.count("ack") == 1

    # A message that is sent before the retry of the first message does not overtake it.
    refused: list[str] = []

    def refuse_the_first(frame: Frame) -> Frame | None:
        if frame["type"] != "send" or refused:
            return None
        refused.append(frame["text"])
        return problem(frame)

    line.answer = refuse_the_first
    chat.send("First")
    expect(refusal).to_be_visible()
    chat.send("Second")
    expect(said).to_have_count(5)
    chat.wait_idle()
    assert [text.split()[0] for text in said.all_inner_texts()[3:]] == ["First", "Second"]
    assert refused == ["First"]
    expect(tab.locator("#pending > *")).to_have_count(0)


def test_text_in_an_editor_is_kept_when_its_message_is_replaced(
    open_chat: Callable[..., Chat], wire: WireThread
) -> None:
    first = open_chat().new()
    first.ask("A question")

    def edit(chat: Chat, text: str = "") -> None:
        chat.page.locator('[data-event-type="user_message"]').last.hover()
        chat.page.get_by_role("button", name="Edit").last.click()
        if text:
            chat.page.locator("#rows textarea").fill(text)

    edit(first, "A slip of the finger")
    first.page.keyboard.press("Escape")
    expect(first.page.locator("#rows textarea")).to_have_count(0)
    first.page.reload()
    edit(first)
    expect(first.page.locator("#rows textarea")).to_have_value("A slip of the finger")
    first.page.get_by_role("button", name="Cancel").click()
    edit(first)
    expect(first.page.locator("#rows textarea")).to_have_value("A question")
    first.page.locator("#rows textarea").fill("A better question")
    second = open_chat().open(first.uuid)
    edit(second, "Another question")
    second.page.get_by_role("button", name="Save").click()
    expect(first.message).to_have_value("A better question")
    expect(second.page.locator("#rows")).to_contain_text("You said: Another question")
    expect(second.message).to_have_value("")
    edit(second, "The best question")
    second.page.reload()
    expect(second.message).to_have_value("The best question")
    second.message.fill("")
    edit(second, "The last question")
    second.page.get_by_role("button", name="Save").click()
    second.page.reload()
    expect(second.page.locator("#rows")).to_contain_text("You said: The last question")
    expect(second.message).to_have_value("")
