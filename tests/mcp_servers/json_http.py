"""Shared code of the servers in plain Python that speak JSON-RPC over HTTP."""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class JsonHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def read_message(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return message

    def send(self, status: int, message: dict[str, Any] | None = None, **headers: str) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode() if message else b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Do not log requests."""


def serve(handler: type[BaseHTTPRequestHandler]) -> None:
    """Serve at the port ``PORT`` or at a free port, and print the port."""
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "0"))), handler)
    print(server.server_port, flush=True)
    server.serve_forever()
