"""A server in plain Python, by address, with the handshake and sessions, which a restart ends. It
answers nothing while there is a file ``hang`` in ``FOLDER``."""

import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

HANG = Path(os.environ["FOLDER"]) / "hang"
UNKNOWN = {"code": -32001, "message": "Session not found"}  # As the SDK's server says it
RESULTS: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
        "serverInfo": {"name": "sessions", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "hello"}]},
    "prompts/list": {"prompts": [{"name": "plan"}]},
    "prompts/get": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Plan a bed."}}]
    },
    "resources/list": {"resources": []},
    "resources/read": {"contents": [{"uri": "beds://south", "text": "Beans."}]},
}
sessions: set[str | None] = set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.wait()
        session, method = self.headers["Mcp-Session-Id"], message["method"]
        if method == "initialize":
            session = uuid4().hex
            sessions.add(session)
        if session not in sessions:
            status = 404 if session else 400
            return self.send(status, {"id": None, "error": UNKNOWN}, session)
        if "id" not in message:
            return self.send(202, None, session)
        return self.send(200, {"id": message["id"], "result": RESULTS[method]}, session)

    def do_GET(self) -> None:
        self.send(405, None, None)

    def do_DELETE(self) -> None:
        self.wait()
        self.send(200, None, None)

    def wait(self) -> None:
        while HANG.exists():
            time.sleep(0.02)

    def send(self, status: int, message: dict[str, Any] | None, session: str | None) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode() if message else b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if session:
            self.send_header("Mcp-Session-Id", session)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "0"))), Handler)
print(server.server_port, flush=True)
server.serve_forever()
