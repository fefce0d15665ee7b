"""Configurations and processes of the servers in this folder."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conversations.agent.mcp.config import McpConfig, parse_config

HERE = Path(__file__).parent

SDK_SERVER = (
    "mcp.server.elicitation",
    "mcp.server.mcpserver.resolve",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
"""Modules that the SDK's server imports, which takes most of the time of its start."""


def plain(*behaviours: str, **fields: Any) -> dict[str, Any]:
    return {
        "command": sys.executable,
        "args": ["-S", str(HERE / "plain_server.py"), *behaviours],
        **fields,
    }


def sdk(**fields: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(HERE / "sdk_server.py")], **fields}


def config(**servers: dict[str, Any]) -> McpConfig:
    return parse_config({"servers": servers}, environment={})


class HttpServer:
    """A server at a local URL, by default the SDK's. ``popen`` starts its process."""

    def __init__(
        self, *command: str, popen: Callable[..., Any] = subprocess.Popen, **environment: str
    ) -> None:
        self.port = 0
        self._command = command or ("sdk_server.py", "http")
        self._popen = popen
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self, *, port: int = 0) -> None:
        self.stop()
        self._process = self._popen(
            [sys.executable, str(HERE / self._command[0]), *self._command[1:]],
            env=os.environ | {"PORT": str(port)} | self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process is not None
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> "HttpServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def until(condition: Callable[[], Any], *, seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
