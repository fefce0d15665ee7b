"""A session's changes in a real browser: shown, undone and redone in a real folder.

Another person changes a file meanwhile, and in the end the folder is as before.
"""

import json
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.changes.conftest import picture
from tests.e2e.accessibility import violations_everywhere, violations_light_and_dark
from tests.e2e.conftest import Chat, Server, settle, take_both_pictures
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

CODE = '''\
"""When the beds are planted."""


def plant(what: str, depth: int = 1) -> str:
    return f"{what} at {depth}"
'''
COMMAND = (
    "cd garden && rm old.txt && mkdir -p build/deep && echo beans > build/deep/out.txt"
    " && mv notes.txt diary.txt && chmod 755 run.sh && head -c 100 /dev/zero > build/zeros"
)

STICKS_OUT = """
(inGerman) => {
  const button = document.querySelector(".changes button"), inEnglish = button.textContent;
  button.textContent = inGerman;
  const { right } = document.querySelector(".panel-part").getBoundingClientRect();
  const out = [...document.querySelectorAll(".panel-part :is(.item, .btn)")].filter(
    (one) => one.getBoundingClientRect().right > right
  ).map((one) => one.innerText);
  button.textContent = inEnglish;
  return out;
}
"""


def prepare(server: Server, name: str) -> Path:
    folder = next(server.folder.glob("workspaces/example")) / name
    folder.mkdir()
    (folder / "beds.py").write_text(CODE)
    (folder / "old.txt").write_text("old\n")
    (folder / "notes.txt").write_text("Plant in May.\n")
    (folder / "run.sh").write_text("python beds.py\n")
    (folder / "run.sh").chmod(0o644)
    (folder / "link").symlink_to("beds.py")
    return folder


def approve_both(page: Page) -> None:
    approve = page.get_by_role("button", name="Approve", exact=True)
    for left in (2, 1):
        expect(approve).to_have_count(left)
        approve.first.click()
    expect(approve).to_have_count(0)


def test_all_changes_of_a_session_can_be_undone_and_redone(
    open_chat: Callable[..., Chat], wire: WireThread, server: Server
) -> None:
    folder = prepare(server, "garden")
    before = picture(folder)
    edit = {"path": "garden/beds.py", "old_text": "depth: int = 1", "new_text": "depth: int = 2"}
    wire.enqueue(
        Scenario(
            text="I change the depth and tidy up.",
            tools=(
                ToolCall(name="edit_file", input=edit),
                ToolCall(name="shell_execute", input={"command": COMMAND}),
            ),
        ),
        Scenario(text="It is done."),
    )
    chat = open_chat().new()
    page = chat.page
    chat.send("Tidy up the garden")
    approve_both(page)
    chat.wait_idle()
    assert picture(folder) != before
    (folder / "beds.py").write_text(CODE + "\n# somebody else's line\n")

    page.get_by_role("link", name="About this session").click()
    page.get_by_role("link", name="Changes", exact=True).click()
    panel = page.locator("#panel")
    expect(panel.get_by_role("heading", name="Files changed")).to_be_visible()
    expect(panel.locator(".changed .path")).to_have_text(
        [
            "garden/beds.py",
            "garden/build/deep/out.txt",
            "garden/build/zeros",
            "garden/diary.txt",
            "garden/notes.txt",
            "garden/old.txt",
            "garden/run.sh",
        ]
    )
    expect(panel).to_contain_text("It was changed afterwards.")
    settle()
    assert violations_light_and_dark(page, "changes-panel", within="#panel") == []

    panel.get_by_role("button", name="Undo all changes").click()
    expect(panel.get_by_role("status")).to_contain_text("1 file was left unchanged.")
    assert "somebody else's" in (folder / "beds.py").read_text()
    assert not (folder / "build").exists()
    expect(panel.locator(".items").first.locator(".path")).to_have_text(["garden/beds.py"])
    put_back = panel.get_by_role("heading", name="Restored").locator("xpath=following-sibling::ul")
    expect(put_back.first.locator(".path")).to_have_count(6)
    take_both_pictures(page, "changes-parted")
    assert page.evaluate(STICKS_OUT, "Alle Änderungen rückgängig machen") == []
    expect(page.locator("#rows .row-info").last).to_contain_text("to the state before")
    tick = panel.get_by_role("checkbox", name="Replace the current version")
    tick.check()

    # The ticked box and the status message stay when a new row arrives.
    wire.enqueue(
        Scenario(tools=(ToolCall(name="write_file", input={"path": "garden/a", "content": "a"}),)),
        Scenario(text="One more."),
    )
    chat.send("Add a file")
    page.get_by_role("button", name="Approve", exact=True).first.click()
    expect(panel.locator(".items").first.locator(".path")).to_have_text(
        ["garden/a", "garden/beds.py"]
    )
    expect(tick).to_be_checked()
    expect(panel.get_by_role("status")).to_contain_text("1 file was left unchanged.")
    chat.wait_idle()
    panel.get_by_role("button", name="Undo all changes").click()
    expect(panel.get_by_role("status")).to_contain_text("Restored 2 files to")
    assert picture(folder) == before

    expect(panel.get_by_role("button", name="Redo")).to_have_count(2)
    panel.get_by_role("button", name="Redo").first.click()
    expect(panel.get_by_role("status")).to_contain_text("before the undo")
    assert "somebody else's" in (folder / "beds.py").read_text()
    chat.ask("Go on")
    assert "Note: Restored 2 files to the state" in json.dumps(wire.requests[-1]["messages"])

    page.get_by_role("link", name="Changes", exact=True).click()
    expect(panel.get_by_role("status")).to_have_count(0)

    page.goto(f"{server.url}/s/{chat.uuid}/changes/")
    expect(page.get_by_role("heading", name="Files changed")).to_be_visible()
    assert violations_everywhere(page, "changes") == []
