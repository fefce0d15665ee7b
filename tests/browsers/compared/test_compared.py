"""The fifty most frequent tasks of people, and the clicks and keys that each takes.

``make test-compared`` does the tasks in a browser and compares the counts with docs/compared.md.
``COMPARED=write`` writes the counts to this document.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from loomweb.env import BASE_DIR
from tests.e2e.conftest import Chat, Server, long_session, settle, wait_until
from tests.e2e.hostile import example_folder
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .hand import Hand

expect.set_options(timeout=10_000)
DOCUMENT = BASE_DIR / "docs" / "compared.md"
ROW = re.compile(r"^\| (?P<task>[^|]+) \| (?P<ours>[^|]+) \|", re.M)


def test_tasks_take_the_documented_clicks_and_keys(
    server: Server,
    wire: WireThread,
    open_chat: Callable[..., Chat],
    tmp_path: Path,
) -> None:
    chat = open_chat(accept_downloads=True).new()
    hand = Hand(chat.page)
    chat.page.set_default_timeout(8000)
    talk(hand, chat, wire)
    work(hand, chat, wire, server, tmp_path)
    look_back(hand, chat, wire, server)
    put_in_order(hand, chat, server)
    told = {row["task"].strip(): row["ours"].strip() for row in ROW.finditer(DOCUMENT.read_text())}
    if os.environ.get("COMPARED") == "write":
        write(hand.counts)
        return
    assert {task: told.get(task) for task in hand.counts} == hand.counts
    assert len(hand.counts) >= 50


def write(counts: dict[str, str]) -> None:
    """Write the counts to the table's column."""
    text = DOCUMENT.read_text()
    for task, ours in counts.items():
        row = re.compile(rf"^\| {re.escape(task)} \| [^|]* \|", re.M)
        text = row.sub(f"| {task} | {ours} |", text)
    DOCUMENT.write_text(text)


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def place(page: Page, name: str) -> Locator:
    """Return a link in the workspace's menu."""
    return page.get_by_role("navigation", name="Workspace").get_by_role("link", name=name)


def link(page: Page, name: str) -> Locator:
    return page.get_by_role("link", name=name, exact=True)


ANSWER = """Here is a plan.

| bed | price |
|-----|-------|
| a | 12 |

```python title="beds.py"
print("beds")
```

```mermaid
flowchart LR
  A --> B
```
"""


def talk(hand: Hand, chat: Chat, wire: WireThread) -> None:
    page = hand.page
    with hand.task("Start a new session"):
        hand.press("Control+Shift+O")
        expect(page.locator("html[data-connected]")).to_be_attached()
    wire.enqueue(Scenario(text=ANSWER))
    with hand.task("Send a message"):
        expect(chat.message).to_be_focused()
        hand.write(chat.message, "Plan the beds")
        hand.press("Enter")
    chat.wait_idle()
    expect(page.locator(".code").first).to_be_visible()
    with hand.task("Choose a model"):
        hand.click(page.get_by_label("Model", exact=True))
        page.get_by_label("Model", exact=True).select_option(index=1)
        hand.press("Enter")
    with hand.task("See how full the model's window is, and what the session cost"):
        expect(page.locator("#meter")).to_be_visible()
    with hand.task("Write a second line in a message"):
        chat.message.focus()
        hand.press("Shift+Enter")
    chat.message.fill("")
    rows = page.locator("#rows")
    answer = rows.locator('[data-event-type="assistant_text"]').last
    with hand.task("Copy an answer"):
        answer.hover()
        hand.click(answer.locator('.acts [data-action="copy"]'))
    with hand.task("Copy code"):
        hand.click(rows.locator('[data-action="copy-code"]').first)
    with hand.task("Download code"), page.expect_download():
        hand.click(rows.locator('[data-action="download-code"]').first)
    with hand.task("Copy a table for a spreadsheet"):
        rows.locator("table").first.hover()
        hand.click(rows.locator('[data-action="copy-csv"]').first)
    with hand.task("See the source of a diagram"):
        expect(page.locator(".code.drawn iframe").first).to_be_visible()
        hand.click(page.locator('.code.drawn [data-action="diagram"], .code.drawn button').first)
    with hand.task("Have an answer made again"):
        wire.enqueue(Scenario(text="Another plan."))
        answer.hover()
        hand.click(page.locator('[data-action="regenerate"]').last)
        expect(rows).to_contain_text("Another plan.")
    chat.wait_idle()
    with hand.task("Edit a message and send it again"):
        wire.enqueue(Scenario(text="A shorter plan."))
        mine = rows.locator('[data-event-type="user_message"]').last
        mine.hover()
        hand.click(mine.locator('[data-action="edit"]'))
        box = page.get_by_role("textbox", name="Edited text")
        box.fill("Plan the beds, shortly")
        hand.click(button(page, "Save"))
        expect(rows).to_contain_text("A shorter plan.")
    chat.wait_idle()
    with hand.task("See another version of it"):
        hand.click(button(page, "Earlier version").last)
        expect(page.get_by_role("region", name="Another version")).to_be_visible()
    with hand.task("Go on from that version"):
        hand.click(button(page, "Use this version"))
        expect(rows).to_contain_text("Another plan.")
    chat.wait_idle()
    with hand.task("Link to one message"):
        page.locator('[data-event-type="assistant_text"]').last.hover()
        hand.click(page.locator('[data-event-type="assistant_text"] [data-action="link"]').last)
    steer(hand, chat, wire)
    before = chat.uuid
    with hand.task("Make a session of what was said so far"):
        page.locator('[data-event-type="assistant_text"]').last.hover()
        hand.click(page.locator('[data-action="fork"]').last)
        page.wait_for_url(lambda url: before not in url)


def steer(hand: Hand, chat: Chat, wire: WireThread) -> None:
    page = hand.page
    wire.enqueue(Scenario(words=3000, rate=30))
    chat.send("Write at length")
    expect(button(page, "Stop")).to_be_visible()
    with hand.task("Queue a message while an answer runs"):
        chat.message.fill("And then this")
        hand.press("Enter")
        expect(page.locator("#queue li")).to_have_count(1)
    with hand.task("Take a queued message back"):
        hand.click(page.locator("#queue").get_by_role("button", name="Withdraw"))
        expect(page.locator("#queue li")).to_have_count(0)
    with hand.task("Have a message go in at the next tool call"):
        chat.message.fill("But first this")
        chat.message.focus()
        hand.press("Alt+Enter")
        expect(page.locator("#queue li")).to_have_count(1)
    page.locator("#queue").get_by_role("button", name="Withdraw").click()
    expect(page.locator("#queue li")).to_have_count(0)
    chat.message.fill("")
    with hand.task("Stop an answer"):
        hand.press("Escape")
    chat.wait_idle()
    with hand.task("Have a stopped answer go on"):
        hand.click(button(page, "Continue").last)
    chat.wait_idle()


def work(hand: Hand, chat: Chat, wire: WireThread, server: Server, tmp_path: Path) -> None:
    page = hand.page
    chat.new()

    def ask_to_write(*names: str) -> None:
        calls = [
            ToolCall(name="write_file", input={"path": f"{name}.md", "content": f"# {name}\n"})
            for name in names
        ]
        wire.enqueue(Scenario(text="I write it.", tools=tuple(calls)), Scenario(text="Done."))
        chat.send("Write " + " ".join(names))
        expect(button(page, "Approve").first).to_be_visible()

    ask_to_write("one")
    with hand.task("See what a call would change before allowing it"):
        expect(page.locator(".diff").last).to_be_visible()
    with hand.task("Allow a call"):
        hand.click(button(page, "Approve"))
    chat.wait_idle()
    ask_to_write("two")
    with hand.task("Deny a call"):
        hand.click(button(page, "Deny"))
    chat.wait_idle()
    ask_to_write("three", "four")
    with hand.task("Allow all calls that wait"):
        expect(button(page, "Approve")).to_have_count(2)
        settle(0.6)  # until the calls count as seen
        hand.click(button(page, "Approve all (2)"))
    chat.wait_idle()
    row = page.locator(".row-tool:visible").last
    with hand.task("See what a call was given and gave"):
        hand.click(row.locator("summary").first)
    with hand.task("Open the file that a call has written"):
        hand.click(row.get_by_role("link", name="Open file"))
        expect(page.locator("iframe.preview")).to_be_visible()
    page.go_back()
    chat.wait_connected()
    with hand.task("See what the session has changed"):
        hand.click(page.get_by_role("link", name="About this session"))
        hand.click(page.get_by_role("link", name="Changes", exact=True))
        expect(button(page, "Undo all changes")).to_be_visible()
    with hand.task("Undo all of it"):
        hand.click(button(page, "Undo all changes"))
        redo = page.get_by_role("button", name="Redo").first
        expect(redo).to_be_visible()
    with hand.task("Redo it"):
        hand.click(redo)
    button(page, "Close").click()
    with hand.task("Allow a kind of call for good"):
        ask_to_write("five")
        hand.click(page.get_by_role("button", name="Always allow").first)
    chat.wait_idle()
    (tmp_path / "a.txt").write_text("text")
    with hand.task("Attach a file"), page.expect_file_chooser() as chooser:
        hand.click(button(page, "Attach files"))
    chooser.value.set_files(tmp_path / "a.txt")
    expect(page.get_by_role("list", name="Attached files").get_by_role("listitem")).to_have_count(1)
    page.reload()
    chat.wait_connected()
    with hand.task("Name a file of the workspace in a message"):
        chat.message.fill("@gre")
        expect(page.get_by_role("option", name="greet.py")).to_be_visible()
        hand.press("Enter")
    chat.message.fill("")
    with hand.task("Look through the workspace's files"):
        hand.click(place(page, "Files"))
    with hand.task("See one of them"):
        hand.click(page.get_by_role("link", name="greet.py"))
        expect(page.locator("iframe.preview")).to_be_visible()
    with hand.task("Download it"), page.expect_download():
        hand.click(page.get_by_role("link", name="Download"))
    page.goto(f"{server.url}/w/example/files/")
    with hand.task("Upload a file"):
        with page.expect_file_chooser() as chooser:
            hand.click(page.get_by_label("Files for this folder"))
        chooser.value.set_files(tmp_path / "a.txt")
        hand.click(button(page, "Upload"))
    wait_until(lambda: (example_folder(server) / "a.txt").exists())


def look_back(hand: Hand, chat: Chat, wire: WireThread, server: Server) -> None:
    page = hand.page
    chat.open(long_session(server, turns=120, title="The long story")).wait_connected()
    with hand.task("Find a word in the session"):
        page.locator("body").press("Escape")
        page.evaluate("document.activeElement.blur()")
        hand.press("f")
        box = page.get_by_role("searchbox", name="Find in this session")
        expect(box).to_be_focused()
        box.fill("number 7")
        hand.press("Enter")
    page.reload()
    chat.wait_connected()
    with hand.task("Read what was said before"):
        page.locator("#rows [data-seq]").first.scroll_into_view_if_needed()
    with hand.task("Go to a turn by its number"):
        hand.click(page.get_by_role("link", name="About this session"))
        hand.click(page.get_by_role("link", name="Outline", exact=True))
        page.get_by_label("Turn").fill("7")
        page.get_by_label("Turn").focus()
        hand.press("Enter")
    chat.wait_connected()
    page.goto(page.url)
    chat.wait_connected()
    with hand.task("See all that the model was sent"):
        hand.click(page.get_by_role("link", name="About this session"))
        hand.click(page.get_by_role("link", name="Context", exact=True))
        expect(page.get_by_role("heading", name="Context")).to_be_visible()
    button(page, "Close").click()
    wire.enqueue(Scenario(text="## Goal\nBeans (turn 1)."))
    with hand.task("Have older turns summarized for the model"):
        hand.click(page.get_by_label("Actions for this session"))
        hand.click(button(page, "Summarize older turns"))
        expect(page.locator('[data-code="compacted"]')).to_be_visible()
    chat.wait_idle()
    with hand.task("Undo the summary"):
        hand.click(button(page, "Undo the summary"))
    chat.wait_idle()
    with hand.task("Search all sessions"):
        hand.click(page.get_by_role("link", name="Search all sessions"))
        field = page.get_by_role("searchbox", name="Search for")
        expect(field).to_be_focused()
        field.fill("number 7")
        hand.press("Enter")
        expect(page.locator(".hit").first).to_be_visible()
    with hand.task("Open what was found, at its place"):
        hand.click(page.locator(".hit").first.get_by_role("link").first)
        expect(page.locator("#rows")).to_be_visible()


def put_in_order(hand: Hand, chat: Chat, server: Server) -> None:
    page = hand.page
    page.goto(f"{server.url}/w/example/")
    with hand.task("Open a session of last week"):
        hand.click(page.get_by_role("link", name="The long story").first)
    chat.wait_connected()
    with hand.task("Rename a session"):
        hand.click(page.get_by_label("Actions for this session"))
        title = page.locator(".bar").get_by_label("New title")
        hand.write(title, "The bean story")
        title.focus()
        hand.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("The bean story")
    uuid = chat.uuid
    for task, name in (("Pin a session", "Pin"), ("Put a session away", "Archive")):
        with hand.task(task), page.expect_navigation():
            hand.click(page.get_by_label("Actions for this session"))
            hand.click(page.locator(".bar").get_by_role("button", name=name, exact=True))
        chat.open(uuid).wait_connected()
    with hand.task("Export a session"), page.expect_download():
        hand.click(page.get_by_label("Actions for this session"))
        hand.click(link(page, "Export as Markdown"))
    page.goto(f"{server.url}/w/example/")
    with hand.task("Put several sessions away"):
        hand.click(page.locator("main .pick").nth(0))
        hand.click(page.locator("main .pick").nth(1))
        with page.expect_navigation():
            hand.click(page.locator("#bulk").get_by_role("button", name="Archive"))
    with hand.task("Switch to the dark theme"):
        hand.click(page.get_by_role("button", name=re.compile("^Theme")).last)
    with hand.task("Go to any session by a word of its title"):
        hand.press("Control+k")
        palette = page.get_by_role("dialog", name="Go to")
        palette.get_by_role("combobox").fill("beds")
        expect(palette.get_by_role("option").first).to_be_visible()
        hand.press("Enter")
    chat.wait_connected()
    with hand.task("Be told on this device when an answer ends"):
        hand.click(page.get_by_label(re.compile("^Account of")))
        hand.click(page.get_by_role("link", name="Notifications"))
        # The browser of a test has no push service, so the button is off.
        hand.count_click(button(page, "Turn on"))
    page.goto(f"{server.url}/w/example/")
    with hand.task("Invite somebody to the workspace"):
        hand.click(place(page, "Members"))
        hand.click(button(page, "Create link"))
    with hand.task("See what it cost"):
        hand.click(place(page, "Usage"))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
