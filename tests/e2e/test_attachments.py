"""Files that a person attaches to a message by pasting, dropping or choosing them."""

import base64
import re
import socket
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, Route, expect

from tests.archive import files
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

from .accessibility import violations, violations_light_and_dark
from .conftest import (
    NAME_OF_THE_MODEL_FITS,
    NARROW,
    Chat,
    Server,
    drop_path,
    proxy_error,
    settle,
    take_picture,
    wait_until,
)
from .line import Line

HAND_OVER = """
([kind, name, type, data, place]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name, { type }));
  const Kind = kind === "paste" ? ClipboardEvent : DragEvent;
  const event = new Kind(kind, {
    clipboardData: transfer, dataTransfer: transfer, bubbles: true, cancelable: true,
  });
  document.querySelector(place).dispatchEvent(event);
  return event.defaultPrevented;
}
"""


def picture(width: int = 900, height: int = 600) -> bytes:
    file = BytesIO()
    Image.radial_gradient("L").resize((width, height)).convert("RGB").save(file, "PNG")
    return file.getvalue()


def hand_over(
    page: Page, kind: str, name: str, data: bytes, media_type: str = "", place: str = "#message"
) -> bool:
    text = base64.b64encode(data).decode()
    return bool(page.evaluate(HAND_OVER, [kind, name, media_type, text, place]))


def choose(page: Page, *chosen: tuple[str, bytes]) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach files").click()
    chooser.value.set_files(
        [{"name": name, "mimeType": "", "buffer": data} for name, data in chosen]
    )


def tray(page: Page) -> Locator:
    return page.get_by_role("list", name="Attached files").get_by_role("listitem")


def there(page: Page, count: int) -> None:
    """Wait until so many files are on the server."""
    expect(tray(page)).to_have_count(count)
    expect(tray(page).get_by_role("progressbar")).to_have_count(0)


def sent_kinds(wire: WireThread) -> list[str]:
    return [block["type"] for block in wire.requests[-1]["messages"][-1]["content"]]


def test_pasted_dropped_and_chosen_files_are_sent_and_can_be_opened(
    chat: Chat, wire: WireThread
) -> None:
    page = chat.page
    assert hand_over(page, "paste", "image.png", picture(), "image/png")
    there(page, 1)
    # The page accepts a drop anywhere, because the browser would otherwise open the file instead.
    assert hand_over(page, "dragover", "b.pdf", files.pdf_bytes(), place="#side")
    expect(page.get_by_text("Drop files to attach them")).to_be_visible()
    take_picture(page, "attachments-drop")
    assert hand_over(page, "drop", "b.pdf", files.pdf_bytes(), place="#side")
    expect(page.get_by_text("Drop files to attach them")).to_be_hidden()
    there(page, 2)
    choose(page, ("notes.txt", b"Beans in May."), ("tall.jpg", files.image_bytes("JPEG", (30, 90))))
    there(page, 4)
    choose(page, ("program.exe", b"MZ\x00\x01"), ("empty.txt", b""))
    expect(tray(page).get_by_text("program.exe can’t be attached.")).to_be_visible()
    expect(tray(page).get_by_text("empty.txt is empty.")).to_be_visible()
    assert violations_light_and_dark(page, "attachments-tray", within="#composer") == []
    chat.send("What is in these?")
    refused = page.get_by_role("alert")
    expect(refused).to_contain_text("program.exe can’t be attached.")
    expect(refused).to_contain_text("Remove it from the message, then send.")
    expect(chat.message).to_have_value("What is in these?")
    page.get_by_role("button", name="Remove program.exe").click()
    expect(refused).to_contain_text("empty.txt is empty.")
    page.get_by_role("button", name="Remove empty.txt").click()
    expect(refused).to_be_hidden()
    chat.ask("What is in these?")
    expect(page.get_by_role("list", name="Attached files")).to_be_empty()
    assert sent_kinds(wire)[:6] == ["text", "image", "document", "document", "text", "image"]
    row = page.locator('[data-event-type="user_message"]')
    expect(row.get_by_role("img")).to_have_count(2)
    sizes = row.locator("img").evaluate_all("all => all.map((one) => one.naturalWidth)")
    assert sizes == [320, 30]
    assert violations_light_and_dark(page, "attachments-row", within="#rows") == []
    live = chat.rows_html()
    page.reload()
    chat.wait_connected()
    assert chat.rows_html() == live
    expect(tray(page)).to_have_count(0)

    page.get_by_role("link", name="image.png").click()
    dialog = page.get_by_role("dialog", name="image.png")
    expect(dialog.get_by_role("img")).to_be_visible()
    wait_until(lambda: page.evaluate("document.querySelector('.viewer img').naturalWidth === 900"))
    take_picture(page, "attachments-view")
    assert violations(page) == []
    with page.expect_download() as download:
        dialog.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "image.png"
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("link", name="image.png")).to_be_focused()
    with page.expect_download() as download:
        page.get_by_role("link", name="b.pdf").click()
    assert download.value.suggested_filename == "b.pdf"


def test_files_survive_a_reload_and_are_queued_with_their_message(
    chat: Chat, wire: WireThread
) -> None:
    page = chat.page
    choose(page, ("one.txt", b"one"), ("two.txt", b"two"))
    there(page, 2)
    page.reload()
    chat.wait_connected()
    there(page, 2)
    page.get_by_role("button", name="Remove one.txt").press("Enter")
    there(page, 1)
    expect(page.get_by_role("button", name="Remove two.txt")).to_be_focused()
    page.get_by_role("button", name="Remove two.txt").press("Enter")
    expect(chat.message).to_be_focused()
    page.reload()
    chat.wait_connected()
    expect(tray(page)).to_have_count(0)

    # A message of files only is sent, and a message with a file is queued.
    choose(page, ("sun.png", picture(60, 40)))
    there(page, 1)
    wire.enqueue(Scenario(text="slow", first_delay=3), Scenario(text="then"))
    page.get_by_role("button", name="Send").click()
    expect(page.locator('[data-event-type="user_message"] img')).to_be_visible()
    choose(page, ("later.txt", b"later"))
    there(page, 1)
    chat.send("and this")
    queue = page.get_by_role("list", name="Queued messages")
    expect(queue).to_contain_text("and this")
    expect(queue).to_contain_text("later.txt")
    queue.get_by_role("button", name="Withdraw").click()
    expect(chat.message).to_have_value("and this")
    there(page, 1)
    chat.message.press("Enter")
    expect(queue).to_contain_text("later.txt")
    # Wait for both footers, because the session is also idle before the second run begins.
    expect(page.locator('[data-event-type="turn_separator"]')).to_have_count(2)
    chat.wait_idle()
    expect(page.locator('[data-event-type="user_message"]')).to_have_count(2)
    assert wire.requests[-1]["messages"][-1]["content"][0]["title"] == "later.txt"

    # On a narrow page, long file names do not make anything overflow.
    page.set_viewport_size(NARROW)
    long_name = f"{'a-rather-long-name-' * 6}.png"
    choose(page, (long_name, picture()), ("b.pdf", files.pdf_bytes()), ("x.exe", b"\x00\x01"))
    expect(tray(page).get_by_text("x.exe can’t be attached.")).to_be_visible()
    there(page, 3)
    take_picture(page, "attachments-narrow-tray")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate(NAME_OF_THE_MODEL_FITS)
    page.get_by_role("button", name="Remove x.exe").click()
    chat.ask("look")
    take_picture(page, "attachments-narrow-row")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("document.querySelector('#transcript').scrollWidth") <= 360

    # Files that are too large or too many are reported immediately.
    choose(page, ("big.txt", b"x" * 1_000_001))
    refusal = "big.txt is too large (1.0 MB). The limit is 1.0 MB."
    expect(tray(page).get_by_text(refusal)).to_be_visible()
    page.get_by_role("button", name="Remove big.txt").click()
    choose(page, *[(f"{number}.txt", b"words") for number in range(11)])
    expect(tray(page).get_by_text("10.txt was left out: at most 10 files")).to_be_visible()
    expect(tray(page).get_by_text("5 bytes")).to_have_count(10)
    expect(tray(page).last).to_be_in_viewport(ratio=1)
    chat.send("Without the eleventh")
    refused = page.get_by_role("alert")
    expect(refused).to_contain_text("10.txt was left out: at most 10 files")
    take_picture(page, "attachments-narrow-left-out")
    expect(chat.message).to_have_value("Without the eleventh")
    page.get_by_role("button", name="Remove 10.txt").click()
    expect(refused).to_be_hidden()


# Keeps track of the running timers of one second.
COUNT_SECONDS = """
() => {
  const { setTimeout, clearTimeout } = window;
  const seconds = window.seconds = new Set();
  window.setTimeout = (act, wait, ...rest) => {
    const timer = setTimeout(() => { seconds.delete(timer); act(...rest); }, wait);
    if (wait === 1000) seconds.add(timer);
    return timer;
  };
  window.clearTimeout = (timer) => { seconds.delete(timer); clearTimeout(timer); };
}
"""


@pytest.mark.noisy
def test_a_failed_upload_can_be_retried_before_the_page_reloads(
    tab: Page, server: Server, tmp_path: Path
) -> None:
    page, line = tab, Line(tab)
    Chat(page, server).new()
    drop_path(page, tmp_path)
    expect(tray(page).get_by_text(f"{tmp_path.name} cannot be read.")).to_be_visible()
    expect(page.get_by_role("button", name="Try")).to_have_count(0)
    page.route("**/attachments/", proxy_error(502))
    choose(page, ("a.txt", b"words"))
    refusal = "a.txt was not uploaded. The server is not responding. Try again."
    expect(tray(page).get_by_text(refusal)).to_be_visible()
    page.unroute("**/attachments/")
    page.route("**/attachments/", lambda route: route.abort())
    page.get_by_role("button", name="Try a.txt again").click()
    lost = "a.txt was not uploaded because the connection was lost."
    expect(tray(page).get_by_text(lost)).to_be_visible()
    expect(page.get_by_role("button", name="Remove a.txt")).to_be_focused()
    page.unroute("**/attachments/")
    page.evaluate(COUNT_SECONDS)
    line.send({"type": "reload", "reason": "rewound"})
    line.send({"type": "reload", "reason": "rewound"})
    settle()
    # A reload would have lost the window's variables and the file.
    assert page.evaluate("window.seconds.size") == 1
    with page.expect_navigation():
        page.get_by_role("button", name="Try a.txt again").click()
    expect(tray(page).get_by_text("5 bytes")).to_be_visible()


def test_a_message_waits_for_the_script_that_attaches_its_file(chat: Chat) -> None:
    page = chat.page
    late: list[Route] = []
    page.route("**/attach*.js", lambda route: late.append(route))
    assert hand_over(page, "paste", "first.txt", b"words")
    chat.send("What is in it?")
    wait_until(lambda: bool(late))
    settle()
    expect(chat.message).to_have_value("What is in it?")
    late[0].continue_()
    there(page, 1)
    chat.message.press("Enter")
    expect(page.locator("#rows .row-user")).to_contain_text("first.txt")
    expect(page.locator("#rows .row-end")).to_have_count(1)


@pytest.mark.noisy
def test_failed_scripts_and_uploads_are_reported_and_work_later(
    chat: Chat, wire: WireThread
) -> None:
    """A script, an upload and the server's data about files fail in turn."""
    page = chat.page
    page.context.set_offline(True)
    page.get_by_role("button", name="Attach files").click()
    expect(page.get_by_role("alert")).to_have_text("Not connected. Try again in a moment.")
    page.evaluate("document.querySelector('#refused').hidden = true")
    assert hand_over(page, "paste", "a.txt", b"words")
    expect(page.get_by_role("alert")).to_have_text("Not connected. Try again in a moment.")
    page.context.set_offline(False)
    assert hand_over(page, "paste", "a.txt", b"words")
    there(page, 1)
    expect(page.get_by_role("alert")).to_be_hidden()
    page.route(re.compile(r"/(commands|refused)\.\w+\.js"), lambda route: route.abort())
    chat.message.press_sequentially("/help")
    expect(page.get_by_role("alert")).to_be_hidden()
    chat.message.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("Not connected. Try again in a moment.")
    expect(chat.message).to_have_value("/help")
    too_long = "x" * 40_001
    page.evaluate("document.querySelector('#composer').dataset.max = '9999999'")
    chat.send(too_long)
    expect(chat.message).to_have_value("")
    expect(page.get_by_role("alert")).to_have_text("Not connected. Try again in a moment.")
    page.unroute_all()
    chat.send(too_long)
    expect(page.get_by_role("alert").filter(has_text="characters")).to_be_visible()
    expect(chat.message).to_have_value(too_long)
    chat.new()

    # A message is not sent while one of its files has failed to upload.
    page.route("**/attachments/", lambda route: route.abort())
    choose(page, ("a.txt", b"words"), ("b.txt", b"words"))
    expect(
        tray(page).get_by_text("was not uploaded because the connection was lost.")
    ).to_have_count(2)
    chat.send("What is in these?")
    refused = page.get_by_role("alert")
    expect(refused).to_have_text("a.txt is not attached. Try again or remove it.")
    expect(chat.message).to_have_value("What is in these?")
    page.unroute("**/attachments/")
    page.get_by_role("button", name="Try a.txt again").click()
    expect(refused).to_have_text("b.txt is not attached. Try again or remove it.")
    page.get_by_role("button", name="Remove b.txt").click()
    expect(refused).to_be_hidden()
    chat.ask("What is in it?")
    assert sent_kinds(wire)[0] == "document"

    # Files are sent even if the server could not return their data after a reload.
    choose(page, ("one.txt", b"one"))
    there(page, 1)
    page.route("**/attachments/?uuid=*", lambda route: route.fulfill(status=503))
    page.reload()
    chat.wait_connected()
    expect(tray(page)).to_have_count(1)
    page.reload()
    chat.wait_connected()
    expect(tray(page)).to_have_count(1)
    page.unroute_all()
    expect(tray(page)).to_contain_text("one.txt")
    chat.ask("What is in it?")
    assert "document" in sent_kinds(wire)


def test_a_request_of_gigabytes_is_refused_before_it_is_read(server: Server) -> None:
    where = urlsplit(server.url)
    assert where.hostname is not None
    assert where.port is not None
    for length in (b"Content-Length: 5000000000", b"Transfer-Encoding: chunked"):
        with socket.create_connection((where.hostname, where.port), timeout=60) as line:
            line.sendall(b"POST /s/x/ HTTP/1.1\r\nHost: localhost\r\n" + length + b"\r\n\r\n")
            answer = read_answer(line, chunked=b"chunked" in length)
        assert re.match(rb"HTTP/1\.1 413 ", answer), answer
        assert b"larger than this server takes" in answer


def read_answer(line: Any, *, chunked: bool) -> bytes:
    block = b"x" * 4_000_000
    answer = b""
    try:
        for _ in range(40 if chunked else 0):
            line.sendall(b"%x\r\n" % len(block) + block + b"\r\n")
    except OSError:
        pass
    try:
        while b"server takes" not in answer and (more := line.recv(65_536)):
            answer += more
    except OSError:
        pass
    return answer
