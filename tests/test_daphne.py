"""Sending frames and responses under Daphne."""

import asyncio
import errno
import json
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Never

import pytest
from autobahn.websocket.protocol import WebSocketProtocol
from twisted.internet.address import IPv4Address
from twisted.internet.tcp import Connection
from twisted.internet.testing import StringTransport
from twisted.web.http import Request

from loomweb import daphne_server
from loomweb.daphne_server import LoomHTTPFactory, LoomRequest, OutboundBuffer, reactor


@pytest.fixture(scope="module", autouse=True)
def closed_loop() -> Iterator[None]:
    yield
    reactor._asyncioEventloop.close()  # Daphne created the loop when it was imported.


def test_frames_are_sent_at_once_or_buffered_in_order() -> None:
    line, page = socket.socketpair()
    with line, page:
        transport = Connection(line, None, reactor)
        transport.connected = 1
        protocol = SimpleNamespace(transport=transport, state=WebSocketProtocol.STATE_OPEN)
        outbound = OutboundBuffer(protocol)
        try:
            assert outbound.write(json.dumps({"seq": 0}))
            assert page.recv(100) == b'\x81\x0a{"seq": 0}'
            assert transport not in reactor.getWriters()  # nothing is left to write

            sent = [json.dumps({"seq": seq, "html": "x" * 60_000}).encode() for seq in range(20)]
            assert all(outbound.write(text.decode()) for text in sent)
            assert transport in reactor.getWriters()
            received = page.recv(1 << 21)
            while transport in reactor.getWriters():
                transport.doWrite()
                received += page.recv(1 << 21)
            assert received == b"".join(
                b"\x81\x7e" + len(text).to_bytes(2, "big") + text for text in sent
            )
            protocol.state = WebSocketProtocol.STATE_CLOSING
            page.setblocking(False)
            assert outbound.write("{}")
            assert transport not in reactor.getWriters()
        finally:
            transport.stopWriting()


def _receive(text: bytes) -> tuple[list[LoomRequest], StringTransport]:
    """Return the requests that reached the application, and the connection that they came over."""
    begun: list[LoomRequest] = []
    served = SimpleNamespace(
        unix_socket_path=None,
        proxy_forwarded_address_header=None,
        proxy_forwarded_port_header=None,
        proxy_forwarded_proto_header=None,
        root_path="",
        server_name="",
        request_buffer_size=8192,
        protocol_connected=lambda _: None,
        create_application=lambda request, _: begun.append(request) or asyncio.Queue(),
    )
    channel = LoomHTTPFactory(served).buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
    line = StringTransport()
    channel.makeConnection(line)
    channel.dataReceived(text)
    return begun, line


def _open_request(text: bytes) -> tuple[LoomRequest, StringTransport]:
    [request], line = _receive(text)
    request.handle_reply({"type": "http.response.start", "status": 200, "headers": []})
    request.handle_reply({"type": "http.response.body", "body": b"begun", "more_body": True})
    return request, line


def test_a_response_that_fails_midway_closes_the_connection() -> None:
    request, line = _open_request(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    request.handle_exception(ZeroDivisionError())
    assert line.value().endswith(b"5\r\nbegun\r\n")
    assert line.disconnected


def test_a_response_to_head_has_no_body() -> None:
    request, line = _open_request(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    request.handle_reply({"type": "http.response.body", "body": b"more", "more_body": True})
    assert line.value().endswith(b"\r\n\r\n")


def test_a_body_for_which_the_disk_has_no_room_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(*_: Any) -> Never:
        raise OSError(errno.ENOSPC, "No space left on device")

    refused: list[bytes] = []
    monkeypatch.setattr(Request, "handleContentChunk", write)
    monkeypatch.setattr(
        daphne_server, "refuse", lambda _, status, text: refused.extend([status, text])
    )
    begun, _ = _receive(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody")
    assert not begun
    assert refused[0] == b"507 Insufficient Storage"
    assert "disk is full" in refused[1].decode()
    assert [record.message for record in caplog.records] == ["storage_error"]
