"""A server in plain Python over HTTP, with the handshake and sessions.

A restart ends its sessions. It does not respond while there is a file ``hang`` in ``FOLDER``.
"""

import os
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from json_http import JsonHandler, serve

HANG = Path(os.environ["FOLDER"]) / "hang"
UNKNOWN = {"code": -32001, "message": "Session not found"}  # The SDK's server has the same error
RESULTS: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
        "serverInfo": {"name": "sessions", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "hello"}]},
    "prompts/list": {
        "prompts": [
            {
                "name": "plan",
                "description": "Plan a bed.",
                "arguments": [{"name": "bed", "required": True}, {"name": "season"}],
            }
        ]
    },
    "resources/list": {"resources": []},
    "resources/read": {"contents": [{"uri": "beds://south", "text": "Beans."}]},
}
sessions: set[str | None] = set()


def write_plan(bed: str = "", season: str = "spring") -> dict[str, Any]:
    text = f"Plan the bed {bed} for {season}."
    return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}


class Handler(JsonHandler):
    def do_POST(self) -> None:
        message = self.read_message()
        self.wait()
        session, method = self.headers["Mcp-Session-Id"], message["method"]
        if method == "initialize":
            session = uuid4().hex
            sessions.add(session)
        named = {"Mcp_Session_Id": session} if session else {}
        if session not in sessions:
            return self.send(404 if session else 400, {"id": None, "error": UNKNOWN}, **named)
        if "id" not in message:
            return self.send(202, **named)
        if method == "tools/call" and "cut" in message["params"]["arguments"]:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        result = RESULTS.get(method) or write_plan(**message["params"].get("arguments") or {})
        return self.send(200, {"id": message["id"], "result": result}, **named)

    def do_GET(self) -> None:
        self.send(405)

    def do_DELETE(self) -> None:
        self.wait()
        self.send(200)

    def wait(self) -> None:
        while HANG.exists():
            time.sleep(0.02)


serve(Handler)
