"""A server in plain Python over HTTP, whose only tool runs as a task.

A task ends when there is a file ``go`` in ``FOLDER``. Tasks still exist after a restart. Cancelling
a task creates a file ``cancelled``.
"""

import os
import time
from pathlib import Path
from typing import Any

from json_http import JsonHandler, serve

FOLDER = Path(os.environ["FOLDER"])
TOOL = {
    "name": "grow",
    "description": "Grow beans.",
    "inputSchema": {"type": "object", "properties": {}},
    "execution": {"taskSupport": "required"},
    "annotations": {"readOnlyHint": True},
}
TIME = "2026-01-01T00:00:00Z"


def describe_task(status: str) -> dict[str, Any]:
    task = {"taskId": "beans", "status": status, "statusMessage": "They grow."}
    return task | {"createdAt": TIME, "lastUpdatedAt": TIME, "ttl": None, "pollInterval": 100}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    status = "completed" if (FOLDER / "go").exists() else "working"
    if method == "initialize":
        tasks = {"requests": {"tools": {"call": {}}}, "cancel": {}}
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "tasks": tasks},
            "serverInfo": {"name": "tasks", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        assert params["task"]
        (FOLDER / "begun").touch()
        return {"task": describe_task("working")}
    if method == "tasks/get":
        return describe_task(status)
    if method == "tasks/cancel":
        (FOLDER / "cancelled").touch()
        return describe_task("cancelled")
    if method == "tasks/result":
        while not (FOLDER / "go").exists():
            time.sleep(0.02)
        return {"content": [{"type": "text", "text": "They are grown."}]}
    return None


class Handler(JsonHandler):
    def do_POST(self) -> None:
        message = self.read_message()
        if "id" not in message:
            return self.send(202)
        result = answer(message["method"], message.get("params") or {})
        outcome = {"error": {"code": -32601, "message": "Method not found"}}
        outcome = outcome if result is None else {"result": result}
        return self.send(200, {"id": message["id"], **outcome})

    def do_GET(self) -> None:
        self.send(405)

    do_DELETE = do_GET


serve(Handler)
