"""A whole piece of work: read, mend and test a small project, then undo all of it."""

import stat
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext, Locator, expect

from tests.e2e.conftest import NARROW, Chat, Server, take_picture
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

CALC = '''"""Sums."""


def add(a, b):
    return a - b
'''
TEST = """import unittest

from calc import add


class AddTest(unittest.TestCase):
    def test_it_adds(self):
        self.assertEqual(add(2, 3), 5)


if __name__ == "__main__":
    unittest.main()
"""
TELLS = "import time\nfor n in range(600):\n    print('tick', n, flush=True)\n    time.sleep(0.1)\n"

FIX = {"path": "calc.py", "old_text": "return a - b", "new_text": "return a + b"}
RUN_TESTS = {"command": "python3 -m unittest -v"}
NOTES = {"path": "docs/NOTES.md", "content": "# Notes\n\nadd() adds now.\n"}

WORK = (
    Scenario(
        text="I read the project first.",
        tools=(
            ToolCall(name="list_files", input={}),
            ToolCall(name="read_file", input={"path": "calc.py"}),
            ToolCall(name="read_file", input={"path": "test_calc.py"}),
        ),
    ),
    Scenario(text="The tests fail?", tools=(ToolCall(name="shell_execute", input=RUN_TESTS),)),
    Scenario(text="A minus too many.", tools=(ToolCall(name="edit_file", input=FIX),)),
    Scenario(text="Once more.", tools=(ToolCall(name="shell_execute", input=RUN_TESTS),)),
    Scenario(text="I note it down.", tools=(ToolCall(name="write_file", input=NOTES),)),
    Scenario(
        text="And watch it for a while.",
        tools=(ToolCall(name="shell_execute", input={"command": "python3 tell.py"}),),
    ),
    Scenario(text="Done: `add` adds, and its test passes."),
)


def look_at(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything in a folder: path, mode, content or where a link leads."""
    found: dict[str, tuple[int, bytes]] = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = b""
        if path.is_symlink():
            content = bytes(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        found[str(path.relative_to(folder))] = (stat.S_IMODE(about.st_mode), content)
    return found


def question(chat: Chat) -> Locator:
    return chat.page.locator("#rows > .row-ask:not(.settled)")


def tool_row(chat: Chat, text: str) -> Locator:
    return chat.page.locator('#rows > [data-event-type="tool_call_completed"]', has_text=text)


def test_a_project_is_mended_and_everything_undone(
    open_chat: Callable[..., Chat],
    open_context: Callable[..., BrowserContext],
    server: Server,
    wire: WireThread,
) -> None:
    folder = server.folder / "workspaces" / "example"
    for name, text in {"calc.py": CALC, "test_calc.py": TEST, "tell.py": TELLS}.items():
        (folder / name).write_text(text)
    (folder / "calc.py").chmod(0o755)
    (folder / "latest.py").symlink_to("calc.py")
    before = look_at(folder)
    wire.server.enqueue(*WORK)
    chat = open_chat().new()

    chat.send("Please mend add() and run its test.")
    expect(question(chat)).to_contain_text("python3 -m unittest -v")
    expect(chat.transcript).to_have_attribute("data-run-state", "waiting_approval")
    take_picture(chat.page, "story-1-asked")
    question(chat).get_by_role("button", name="Always").click()
    expect(tool_row(chat, "python3 -m unittest -v").first).to_contain_text("Failed")

    expect(question(chat)).to_contain_text("return a + b")
    take_picture(chat.page, "story-2-diff")
    question(chat).get_by_role("button", name="Approve").click()
    expect(tool_row(chat, "python3 -m unittest -v")).to_have_count(2)
    assert "return a + b" in (folder / "calc.py").read_text()

    expect(question(chat)).to_contain_text("NOTES.md")
    question(chat).get_by_role("textbox").fill("No notes, please.")
    question(chat).get_by_role("button", name="Deny").click()
    # "Always" was for that other command alone.
    expect(question(chat)).to_contain_text("tell.py")
    question(chat).get_by_role("button", name="Approve").click()
    expect(chat.page.locator(".live pre")).to_contain_text("tick 5")
    assert not (folder / "docs").exists()

    chat.page.reload()
    chat.wait_connected()
    expect(chat.page.locator(".live pre")).to_contain_text("tick 9")
    take_picture(chat.page, "story-3-running")
    chat.page.get_by_role("button", name="Cancel").click()
    expect(tool_row(chat, "tell.py").last).to_contain_text("Stopped")
    chat.wait_idle()
    expect(chat.rows.last).to_be_visible()
    take_picture(chat.page, "story-4-done")
    results = [
        block
        for request in wire.server.requests
        for message in request["messages"]
        for block in message["content"]
        if isinstance(block, dict) and block.get("type") == "tool_result"
    ]
    assert any("No notes, please." in str(block["content"]) for block in results)
    assert look_at(folder) != before

    address = f"{server.url}/s/{chat.uuid}/"
    undo_everything(chat)
    assert look_at(folder) == before
    narrow = open_context(viewport=NARROW, color_scheme="dark").new_page()
    narrow.goto(address)
    expect(narrow.locator("#rows > .row-info").last).to_contain_text("to their state before")
    take_picture(narrow, "story-5-narrow-dark")


def undo_everything(chat: Chat) -> None:
    chat.page.goto(f"{chat.server.url}/s/{chat.uuid}/changes/")
    take_picture(chat.page, "story-6-changes")
    chat.page.get_by_role("button", name="Undo all changes").click()
    expect(chat.page.get_by_text("to their state before").first).to_be_visible()
    take_picture(chat.page, "story-7-undone")
