"""HTTP/1.1 on one connection: requests in, responses out."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.wire.prompt_cache import CacheFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One request, with header names in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    content: bytes

    @property
    def api_key(self) -> str:
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ").strip()
        return bearer or self.headers.get("x-api-key", "")


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A request and its outcome. Times are those of ``time.monotonic()``."""

    path: str
    headers: dict[str, str]
    body: Any
    started: float
    client_port: int  # tells connections apart
    status: int = 0
    error: str = ""
    ended: float | None = None
    client_left: float | None = None
    cache: CacheFigures | None = None


@dataclass(slots=True)
class Connection:
    """One client's connection and its current exchange."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    exchange: Exchange
    request_id: str = ""
    is_open: bool = True

    async def send_json(
        self, status: int, body: Any, headers: Mapping[str, str] | None = None
    ) -> None:
        await self.send_text(status, json.dumps(body), "application/json", headers)

    async def send_text(
        self, status: int, text: str, content_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        content = text.encode()
        self.start(status, {"content-type": content_type, **(headers or {})}, len(content))
        self.writer.write(content)
        await self.writer.drain()

    def start(self, status: int, headers: Mapping[str, str], length: int | None = None) -> None:
        """Write the head of a response. Without a length, the body is chunked."""
        self.exchange.status = status
        phrase = HTTPStatus(status).phrase if status in HTTPStatus else "Overloaded"
        size = {"transfer-encoding": "chunked"} if length is None else {"content-length": length}
        fields = {"request-id": self.request_id, **headers, **size}
        lines = [f"HTTP/1.1 {status} {phrase}", *(f"{k}: {v}" for k, v in fields.items())]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """Return the next request of a connection, or None if the client has closed it."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    url = urlsplit(target)
    return HttpRequest(
        method=method,
        path=url.path,
        query={name: values[-1] for name, values in parse_qs(url.query).items()},
        headers=headers,
        content=await reader.readexactly(int(headers.get("content-length", 0))),
    )


def load_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None
