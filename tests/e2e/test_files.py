"""The files of a workspace in the browser: hostile files, versions and uploads."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e.accessibility import marks_unseen_in_forced_colours, violations_everywhere
from tests.e2e.conftest import Chat, Server, Visitors, drop_path, proxy_error
from tests.e2e.hostile import (
    OPEN_ALL,
    example_folder,
    outcome_of,
    write_hostile_files,
)
from tests.e2e.test_answer_content import sent_requests
from tests.rendering.hostile_files import MARKUP
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread


@pytest.mark.noisy
def test_hostile_files_reach_no_cookie_parent_storage_or_network(
    server: Server, open_context: Callable[..., BrowserContext], evil: Visitors
) -> None:
    paths = write_hostile_files(server, evil)
    assert len(paths) >= 200
    context = open_context()
    page = context.new_page()
    page.goto(f"{server.url}/w/example/files/?path=greet.py")
    asked = sent_requests(page)
    page.on("dialog", lambda dialog: asked.append(dialog.message))
    found = page.evaluate(OPEN_ALL, paths)
    assert found == outcome_of(paths)
    own = (f"{server.url}/w/example/files/preview/?", "data:")
    assert [url for url in asked if not url.startswith(own)] == []
    assert len(context.pages) == 1
    assert evil.count == 0
    # To prove that the counter counts, show the same markup in a page without protection.
    page.goto("about:blank")
    page.set_content("".join(MARKUP[5:20]).replace("EVIL", evil.url))
    page.wait_for_timeout(300)
    assert evil.count > 0


def test_every_version_of_a_changed_file_can_be_opened(
    open_chat: Callable[..., Chat], wire: WireThread, server: Server
) -> None:
    folder = example_folder(server) / "bed"
    folder.mkdir()
    (folder / "plan.md").write_text("# Plan one\n")
    for text in ("# Plan two\n", "# Plan three\n\n[^1]: By Ann.\n"):
        wire.enqueue(
            Scenario(
                text="I write it.",
                tools=(
                    ToolCall(name="write_file", input={"path": "bed/plan.md", "content": text}),
                ),
            ),
            Scenario(text="Written."),
        )
    chat = open_chat().new()
    page = chat.page
    for word in ("two", "three"):
        chat.send(f"Make it {word}.")
        page.get_by_role("button", name="Approve", exact=True).click()
        expect(chat.rows.filter(has_text="Written.")).to_have_count(1 if word == "two" else 2)
    # The row of a call opens the version of the file that the call wrote.
    row = page.locator(".row-tool:visible", has_text="plan.md").first
    row.locator("summary").click()
    row.get_by_role("link", name="Open file").click()
    shown = page.frame_locator("iframe.preview")
    expect(shown.get_by_role("heading", name="Plan two")).to_be_visible()
    expect(page.get_by_text("an earlier version")).to_be_visible()
    assert violations_everywhere(page, "file-version") == []
    page.get_by_role("link", name="Current version").click()
    expect(shown.get_by_role("heading", name="Plan three")).to_be_visible()
    expect(shown.locator(".note")).to_have_css("display", "grid")  # not the frame's own notice
    versions = page.get_by_role("region", name="Versions").get_by_role("listitem")
    expect(versions).to_have_count(3)
    versions.last.get_by_role("link").first.click()
    expect(shown.get_by_role("heading", name="Plan one")).to_be_visible()
    assert marks_unseen_in_forced_colours(page) == []
    # The list of all files marks those that the session has changed.
    versions.last.get_by_role("link").last.click()
    page.get_by_role("navigation", name="Workspace").get_by_role("link", name="Files").click()
    expect(page.locator("[data-mark]")).to_contain_text(["bed"])
    assert violations_everywhere(page, "files-marked") == []


@pytest.mark.noisy  # some uploads are refused
def test_files_can_be_uploaded_by_form_and_by_drop(
    server: Server, tab: Page, tmp_path: Path
) -> None:
    folder = example_folder(server) / f"up-{uuid4().hex[:8]}"
    folder.mkdir()
    tab.goto(f"{server.url}/w/example/files/?path={folder.name}")
    expect(tab.get_by_text("This folder is empty.")).to_be_visible()
    assert violations_everywhere(tab, "files-empty") == []
    (tmp_path / "one.txt").write_text("one\n")
    tab.get_by_label("Files for this folder").set_input_files(tmp_path / "one.txt")
    tab.get_by_role("button", name="Upload").click()
    expect(tab.get_by_role("status").filter(has_text="Uploaded: one.txt.")).to_be_visible()
    expect(tab.get_by_role("link", name="one.txt")).to_be_visible()
    # The same upload again is refused, and the chosen file stays chosen.
    tab.get_by_label("Files for this folder").set_input_files(tmp_path / "one.txt")
    tab.get_by_role("button", name="Upload").click()
    expect(tab.get_by_role("alert")).to_contain_text("one.txt already exists")
    tab.get_by_label("Replace files of the same name").check()
    tab.get_by_role("button", name="Upload").click()
    expect(tab.get_by_role("alert")).to_have_count(0)
    expect(tab.get_by_role("status").filter(has_text="Uploaded: one.txt.")).to_be_visible()
    # An upload may be larger than any other request.
    (tmp_path / "large.bin").write_bytes(b"x" * 16_000_000)
    tab.get_by_label("Files for this folder").set_input_files(tmp_path / "large.bin")
    tab.get_by_role("button", name="Upload").click()
    expect(tab.get_by_role("link", name="large.bin")).to_be_visible()
    # The errors of a proxy differ from a lost connection.
    for status, told in (
        (413, "These files are too large for one upload."),
        (504, "The server is not responding. Try again."),
    ):
        tab.route("**/files/upload/*", proxy_error(status))
        tab.get_by_label("Files for this folder").set_input_files(tmp_path / "one.txt")
        tab.get_by_role("button", name="Upload").click()
        expect(tab.get_by_text(told)).to_be_visible()
        tab.unroute_all()
    tab.evaluate(DROP, ["two.txt"])
    expect(tab.get_by_role("link", name="two.txt")).to_be_visible()
    assert (folder / "two.txt").read_text() == "dropped"
    drop_path(tab, tmp_path)
    expect(tab.get_by_text(f"{tmp_path.name} cannot be read.")).to_be_visible()
    tab.evaluate(DROP, [f"{number}.txt" for number in range(1001)])
    expect(tab.get_by_text("At most 1\u202f000 files can be uploaded at once.")).to_be_visible()


DROP = """
(names) => {
  const data = new DataTransfer();
  for (const name of names) data.items.add(new File(["dropped"], name));
  for (const kind of ["dragover", "drop"]) {
    const how = { dataTransfer: data, bubbles: true, cancelable: true };
    document.body.dispatchEvent(new DragEvent(kind, how));
  }
}
"""
