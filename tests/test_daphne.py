"""How frames leave under Daphne."""

import json
import socket
from types import SimpleNamespace

from autobahn.websocket.protocol import WebSocketProtocol
from twisted.internet.tcp import Connection

from loomweb.daphne_server import OutboundBuffer, reactor


def test_a_frame_leaves_at_once_and_what_does_not_fit_follows_in_order() -> None:
    line, page = socket.socketpair()
    with line, page:
        transport = Connection(line, None, reactor)
        transport.connected = 1
        protocol = SimpleNamespace(transport=transport, state=WebSocketProtocol.STATE_OPEN)
        outbound = OutboundBuffer(protocol)
        try:
            assert outbound.write(json.dumps({"seq": 0}))
            assert page.recv(100) == b'\x81\x0a{"seq": 0}'
            assert transport not in reactor.getWriters()  # nothing to come back for

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
            reactor._asyncioEventloop.close()  # Daphne has made it when it was loaded.
