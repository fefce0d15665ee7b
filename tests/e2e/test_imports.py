"""Uploading an export in a browser, and watching it become sessions."""

import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, expect

from .conftest import Server

EXPORT = Path(__file__).parent.parent / "imports" / "fixtures" / "claude-code.jsonl"


def test_a_file_to_be_imported_may_be_larger_than_other_requests(server: Server) -> None:
    def answer(path: bytes, *, patience: float) -> bytes:
        length = b"Content-Length: 400000000\r\n\r\n"
        with socket.create_connection((where.hostname, where.port), timeout=20) as line:
            line.settimeout(patience)
            line.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + length)
            try:
                return bytes(line.recv(100))
            except TimeoutError:
                return b"it waits for the rest"

    where = urlsplit(server.url)
    assert b" 413 " in answer(b"/s/x/", patience=20)
    assert answer(b"/import/?x=1", patience=2) == b"it waits for the rest"


def test_an_upload_becomes_sessions_while_one_watches(
    server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context().new_page()
    page.goto(f"{server.url}/import/")
    page.get_by_label("File", exact=True).set_input_files(EXPORT)
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_role("status")).to_have_text("done", timeout=15_000)
    expect(page.get_by_text("Sessions added: 3")).to_be_visible()
    page.get_by_role("link", name="Sessions of Example").click()
    page.get_by_role("link", name="Labels for the beds").first.click()
    log = page.get_by_role("log", name="Transcript")
    expect(log.get_by_text("Both have labels.")).to_be_visible()
    expect(log.locator("[data-turn]").last).to_contain_text("Gladly.")
