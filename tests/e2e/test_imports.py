"""Uploading an export in a browser, and watching it become sessions."""

import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, expect

from .conftest import Server

EXPORT = Path(__file__).parent.parent / "features/interchange/fixtures" / "claude-code.jsonl"


LARGE = b"Content-Length: 400000000"
WAITS = b"it waits for the rest"


def begin_upload(
    server: Server, path: str, *headers: bytes, cookie: str = "", seconds: float = 60
) -> bytes:
    """What the server says when it knows how much is to come."""
    where = urlsplit(server.url)
    given = [f"Cookie: loom_session={cookie}".encode()] if cookie else []
    head = [f"POST {path} HTTP/1.1".encode(), b"Host: localhost", *given, *headers]
    with socket.create_connection((where.hostname, where.port), timeout=60) as line:
        line.settimeout(seconds)
        line.sendall(b"\r\n".join(head) + b"\r\n\r\n")
        try:
            return bytes(line.recv(100))
        except TimeoutError:
            return WAITS


def test_a_file_to_be_imported_may_be_larger_than_other_requests(
    server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    """For those who are signed in. The server asks before it takes any of it."""
    context = open_context()
    [key] = [c["value"] for c in context.cookies(server.url) if c["name"] == "loom_session"]
    assert b" 413 " in begin_upload(server, "/s/x/", LARGE, cookie=key)
    taken = begin_upload(server, "/import/?x=1", LARGE, cookie=key, seconds=2)
    assert taken == WAITS
    assert b" 413 " in begin_upload(server, "/import/", LARGE)
    assert b" 413 " in begin_upload(server, "/import/", LARGE, cookie="0" * 32)
    assert b" 413 " in begin_upload(server, "/import/", LARGE, cookie="%00")


def test_an_upload_becomes_sessions_while_one_watches(
    server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context().new_page()
    page.goto(f"{server.url}/import/")
    page.get_by_label("File", exact=True).set_input_files(EXPORT)
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_role("status")).to_have_text("done")
    expect(page.get_by_text("Sessions added: 3")).to_be_visible()
    page.get_by_role("link", name="Sessions of Example").click()
    page.get_by_role("link", name="Labels for the beds").first.click()
    log = page.get_by_role("log", name="Transcript")
    expect(log.get_by_text("Both have labels.")).to_be_visible()
    expect(log.locator("[data-turn]").last).to_contain_text("Gladly.")
