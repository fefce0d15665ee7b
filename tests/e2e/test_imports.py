"""Uploading an export in a browser, and watching it become sessions."""

import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, expect

from .conftest import Server

EXPORT = Path(__file__).parent.parent / "features/interchange/fixtures" / "claude-code.jsonl"


LARGE = b"Content-Length: 400000000"
CHUNKED = b"Transfer-Encoding: chunked"
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


@pytest.mark.parametrize("kind", ["daphne", "uvicorn"])
def test_a_large_file_is_imported_whole(
    make_server: Callable[..., Server],
    open_context: Callable[..., BrowserContext],
    tmp_path: Path,
    kind: str,
) -> None:
    """One that is larger than other requests may be: it waits in between. Of unknown
    length it is as large as others from a stranger, and no larger."""
    server = make_server(
        LOOM_MAX_ATTACHMENTS="1",
        LOOM_MAX_ATTACHMENT_BYTES="1000",
        LOOM_MAX_FRAME_BYTES="1000",
        LOOM_ASGI_SERVER=kind,
    )
    export = tmp_path / "export.jsonl"
    lines = ["x" * 999_000 + "\n"] * 3
    export.write_text(EXPORT.read_text() + "".join(lines))
    page = open_context(storage_state=None).new_page()
    page.goto(server.link)
    page.goto(f"{server.url}/import/")
    page.get_by_label("File", exact=True).set_input_files(export)
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_role("status")).to_have_text("done")
    expect(page.get_by_text("Sessions added: 3")).to_be_visible()
    where = urlsplit(server.url)
    head = b"POST /import/ HTTP/1.1\r\nHost: localhost\r\n" + CHUNKED + b"\r\n\r\n"
    with socket.create_connection((where.hostname, where.port), timeout=60) as line:
        line.sendall(head + b"80000\r\n" + b"x" * 0x80000)
        assert b" 413 " in line.recv(100)
    assert b" 400 " in begin_upload(server, "/import/", b"Content-Length: 5", CHUNKED)
    # What else a browser has for cookies changes nothing, nor do several lines of them.
    [key] = [c["value"] for c in page.context.cookies() if c["name"] == "loom_session"]
    assert b" 413 " in begin_upload(server, "/import/", LARGE, b"Cookie: a,b=1")
    for other in (b"Cookie: [x]=1", b"Cookie: a,b=1"):
        assert begin_upload(server, "/import/", LARGE, other, cookie=key, seconds=2) == WAITS


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
