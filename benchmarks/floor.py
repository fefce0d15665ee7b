"""The limit of every stream: a client that reads the provider's stream directly."""

import asyncio
import json
from time import monotonic_ns

from .wire import KEY

_HEAD = (
    "POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: {key}\r\n"
    "anthropic-version: 2023-06-01\r\ncontent-type: application/json\r\n"
    "content-length: {length}\r\n\r\n"
)


class DirectReader:
    """A persistent connection to the provider.

    ``received`` holds the data of the last response, with the time on the monotonic clock in
    nanoseconds.
    """

    def __init__(self, *, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.received: list[tuple[int, bytes]] = []

    async def open(self) -> None:
        self._streams = await asyncio.open_connection("127.0.0.1", self._port)

    async def ask(self, text: str) -> int:
        """Send a message and read the whole response. Return the time of the request."""
        assert self._streams is not None
        reader, writer = self._streams
        message = {"role": "user", "content": text}
        body = json.dumps(
            {
                "model": "claude-sonnet-5-5",
                "max_tokens": 9000,
                "stream": True,
                "messages": [message],
            }
        ).encode()
        self.received = []
        asked = monotonic_ns()
        writer.write(_HEAD.format(key=KEY, length=len(body)).encode() + body)
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            chunk = await reader.read(65536)
            if not chunk:
                raise ConnectionError(f"the provider ended the stream: {data[-300:]!r}")
            self.received.append((monotonic_ns(), chunk))
            data = (data + chunk)[-300:]
        return asked

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()

    def arrivals(self) -> list[int]:
        """Return the times at which each piece of the answer's text was complete, in order."""
        marks: list[int] = []
        pending = b""
        for at, chunk in self.received:
            pending += chunk
            *events, pending = pending.split(b"\n\n")
            marks += [at for event in events if b'"text_delta"' in event]
        return marks
