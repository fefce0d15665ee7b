"""Large uploads, slow clients and shutdown under both ASGI servers.

A large upload is accepted whole. A page that does not read is closed, and a download to a slow
client waits, so neither fills the memory. A shutdown ends the running answer.
"""

import http.cookiejar
import json
import re
import socket as socket_module
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from getpass import getuser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from playwright.sync_api import BrowserContext, expect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.e2e.conftest import Server, wait_until
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

CHUNKED = b"Transfer-Encoding: chunked"
EXPORT = Path(__file__).parent.parent / "features/interchange/fixtures" / "claude-code.jsonl"


LARGE = b"Content-Length: 400000000"
WAITS = b"it waits for the rest"


def begin_upload(
    server: Server, path: str, *headers: bytes, cookie: str = "", seconds: float = 60
) -> bytes:
    """Send the headers of an upload, and return the server's first bytes or ``WAITS``."""
    where = urlsplit(server.url)
    given = [f"Cookie: loom_session={cookie}".encode()] if cookie else []
    head = [f"POST {path} HTTP/1.1".encode(), b"Host: localhost", *given, *headers]
    with socket_module.create_connection((where.hostname, where.port), timeout=60) as line:
        line.settimeout(seconds)
        line.sendall(b"\r\n".join(head) + b"\r\n\r\n")
        try:
            return bytes(line.recv(100))
        except TimeoutError:
            return WAITS


@pytest.fixture(scope="module", params=["daphne", "uvicorn"])
def one(
    make_server: Callable[..., Server], provider: WireThread, request: pytest.FixtureRequest
) -> Server:
    """Start a server with small limits for requests. The module's last test with it ends it."""
    return make_server(
        ANTHROPIC_API_KEY=provider.key,
        ANTHROPIC_BASE_URL=provider.url,
        LOOM_ASGI_SERVER=request.param,
        LOOM_MAX_ATTACHMENTS="1",
        LOOM_MAX_ATTACHMENT_BYTES="1000",
        LOOM_MAX_FRAME_BYTES="1000",
        LOOM_MAX_API_BYTES="1000",
    )


def test_only_signed_in_people_and_programs_can_import_a_large_file(
    one: Server, open_context: Callable[..., BrowserContext], tmp_path: Path
) -> None:
    """The file is larger than the limit for other requests, and is stored until its import runs.

    A stranger's upload of unknown length may only be as large as other requests.
    """
    server = one
    export = tmp_path / "export.jsonl"
    lines = ["x" * 999_000 + "\n"] * 3
    export.write_text(EXPORT.read_text() + "".join(lines))
    page = open_context(storage_state=None).new_page()
    page.goto(server.sign_in_link())
    page.goto(f"{server.url}/import/")
    page.get_by_label("File", exact=True).set_input_files(export)
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_role("status")).to_have_text("done")
    expect(page.get_by_text("Sessions added: 3")).to_be_visible()
    page.get_by_role("link", name="Sessions of Example").click()
    page.get_by_role("link", name="Labels for the beds").first.click()
    log = page.get_by_role("log", name="Transcript")
    expect(log.get_by_text("Both have labels.")).to_be_visible()
    expect(log.locator("[data-turn]").last).to_contain_text("Gladly.")
    where = urlsplit(server.url)
    head = b"POST /import/ HTTP/1.1\r\nHost: localhost\r\n" + CHUNKED + b"\r\n\r\n"
    with socket_module.create_connection((where.hostname, where.port), timeout=60) as line:
        line.sendall(head + b"80000\r\n" + b"x" * 0x80000)
        assert b" 413 " in line.recv(100)
    assert b" 400 " in begin_upload(server, "/import/", b"Content-Length: 5", CHUNKED)
    # Other cookies of the browser do not matter, nor do several Cookie headers.
    [key] = [c["value"] for c in page.context.cookies() if c["name"] == "loom_session"]
    assert b" 413 " in begin_upload(server, "/import/", LARGE, b"Cookie: a,b=1")
    for path, other in (("/import/?x=1", b"Cookie: [x]=1"), ("/import/", b"Cookie: a,b=1")):
        assert begin_upload(server, path, LARGE, other, cookie=key, seconds=2) == WAITS
    # The large limit is only for people who are signed in, and only for this address.
    assert b" 413 " in begin_upload(server, "/s/x/", LARGE, cookie=key)
    for unknown in ("0" * 32, "%00"):
        assert b" 413 " in begin_upload(server, "/import/", LARGE, cookie=unknown)
    # A program authenticates with its token.
    address = "/api/v1/workspaces/example/imports"
    token = server.manage("create_token", getuser(), "--name", "Imports").strip().encode()
    for header in (b"Authorization: Bearer " + token, b"X-Api-Key: " + token):
        assert begin_upload(server, address, LARGE, header, seconds=2) == WAITS
    for header in (b"Authorization: Bearer loom_x", b"X-Api-Key: x", b"Accept: */*"):
        assert b" 413 " in begin_upload(server, address, LARGE, header)


def test_a_refused_client_that_sends_on_can_read_the_reason(one: Server) -> None:
    """A proxy sends the whole body first. If it met a reset, it would answer 502."""
    where = urlsplit(one.url)
    for path, cookie in (("/s/x/", "a=1"), ("/import/", f"loom_session={'0' * 32}")):
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n"
        with socket_module.create_connection((where.hostname, where.port), timeout=60) as line:
            line.sendall(f"{head}Content-Length: 20000000\r\n\r\n".encode())
            for _ in range(20):
                line.sendall(b"x" * 1_000_000)
            answer = b"".join(iter(lambda: line.recv(1000), b""))
        assert re.match(rb"HTTP/1\.1 413 ", answer), answer
        assert answer.endswith(b"This is larger than this server takes.\n")


def sign_in_and_begin(server: Server) -> tuple[str, dict[str, str]]:
    """Sign in, and return the socket's address of a new session and the headers to connect."""
    cookies = http.cookiejar.CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
    with opener.open(server.link) as page:
        uuid = str(re.search(r"/s/([0-9a-f-]{36})/", page.geturl()).group(1))  # type: ignore[union-attr]
    headers = {"Cookie": "; ".join(f"{c.name}={c.value}" for c in cookies)}
    return f"{server.url.replace('http', 'ws')}/ws/s/{uuid}/", headers


def test_a_page_that_reads_too_slowly_is_closed_and_catches_up(
    one: Server, wire: WireThread
) -> None:
    server = one
    address, headers = sign_in_and_begin(server)
    assert why_it_is_closed(server, f"/ws/s/{uuid4()}/", headers["Cookie"]) == 4404

    # The answer is larger than the buffers of the system and the server. The client has small
    # buffers and reads nothing for a while.
    wire.enqueue(Scenario(text="```\n" + "a line of code\n" * 400_000, chunk=30_000, rate=40))
    log = server.folder / "server.log"

    def times_too_slow() -> int:
        return log.read_text().count("page_reads_too_slowly")

    before = times_too_slow()
    host, _, port = server.url.removeprefix("http://").partition(":")
    small = socket_module.create_connection((host, int(port)))
    small.setsockopt(socket_module.SOL_SOCKET, socket_module.SO_RCVBUF, 8192)
    options = {"origin": server.url, "additional_headers": headers, "max_size": None}
    with connect(address, sock=small, max_queue=1, **options) as socket:
        socket.send(json.dumps({"type": "send", "client_id": "slow-reader-1", "text": "go"}))
        wait_until(lambda: times_too_slow() > before, seconds=60)
        # The close code is 4408 if the page reads it in time. Otherwise the connection just ends.
        with pytest.raises(ConnectionClosed):
            _read_to_the_end(socket)

    # On a busy machine, reading everything may be too slow again, so the page reconnects.
    for _ in range(10):
        with connect(f"{address}?after=seq:0", **options) as socket, suppress(ConnectionClosed):
            assert json.loads(socket.recv(timeout=60))["type"] == "hello"
            # Do not stop an answer that has already ended, as this would stop the next answer.
            if _read_until(socket, lambda it: it["type"] == "state")["run_state"] != "idle":
                socket.send(json.dumps({"type": "stop"}))
                _read_until_idle(socket)
            break
    else:
        pytest.fail("closed each time")

    # A server that is stopped during an answer tells connected pages and keeps the answer.
    wire.enqueue(Scenario(words=3000, rate=50))
    with connect(address, **options) as socket:
        socket.send(json.dumps({"type": "send", "client_id": "slow-reader-2", "text": "go"}))
        _read_until(socket, lambda frame: "archive" in json.dumps(frame))
        assert server.end() == 0
        _read_until_idle(socket)
    assert "Traceback" not in log.read_text()


def why_it_is_closed(server: Server, path: str, cookie: str) -> int:
    """Return the close code that a page receives if it answers the close frame late."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket_module.create_connection((host, int(port)), timeout=60) as page:
        page.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: {server.url}\r\n"
            f"Cookie: {cookie}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            "\r\n".encode()
        )
        received = frame = b""
        while len(frame) < 4:  # the response and the frame may arrive in pieces
            piece = page.recv(10_000)
            assert piece
            received += piece
            _, _, frame = received.partition(b"\r\n\r\n")
        assert frame[:2] == b"\x88\x02"
        time.sleep(1.5)
        # The connection is still open for the reply.
        page.sendall(b"\x88\x82" + bytes(4) + frame[2:])
        with suppress(ConnectionResetError):
            assert page.recv(100) == b""
        return int.from_bytes(frame[2:])


def _read_until(
    socket: ClientConnection, is_it: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    while True:
        frame: dict[str, Any] = json.loads(socket.recv(timeout=60))
        if is_it(frame):
            return frame


def _read_until_idle(socket: ClientConnection) -> None:
    _read_until(socket, lambda it: it["type"] == "state" and it["run_state"] == "idle")


def _read_to_the_end(socket: ClientConnection) -> None:
    while True:
        socket.recv(timeout=60)


def memory_of(server: Server) -> int:
    """Return the resident memory of the server's process in bytes."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status).group(1))  # type: ignore[union-attr]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_download_to_a_slow_client_does_not_fill_the_memory(server: Server) -> None:
    cookies = http.cookiejar.CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
    opener.open(server.manage("sign_in_link").strip()).close()
    uuid = str(uuid4())
    lines: list[dict[str, object]] = [{"type": "session", "uuid": uuid, "workspace": "example"}]
    lines += [
        {"type": "turn", "number": number, "role": "user", "content": "beans" * 24_000}
        for number in range(1, 201)
    ]
    size = 200 * 120_000
    server.import_lines(lines)
    host, _, port = server.url.removeprefix("http://").partition(":")
    cookie = "; ".join(f"{c.name}={c.value}" for c in cookies)
    before = memory_of(server)
    with socket_module.socket() as slow:
        slow.setsockopt(socket_module.SOL_SOCKET, socket_module.SO_RCVBUF, 8192)
        slow.settimeout(60)
        slow.connect((host, int(port)))
        slow.sendall(
            f"GET /s/{uuid}/export/ HTTP/1.0\r\nHost: {host}:{port}\r\n"
            f"Cookie: {cookie}\r\n\r\n".encode()
        )
        time.sleep(3)
        assert memory_of(server) - before < size / 2
        received = 0
        while piece := slow.recv(1_000_000):
            received += len(piece)
    assert received > size
