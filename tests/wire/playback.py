"""Playback of an answer's events on a connection, at its pace and with its faults."""

import asyncio
import json
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress

from tests.wire.frames import STAMP, Frame
from tests.wire.scenario import Scenario

WRITE_BUFFER = 65_536
PING_FRAME = Frame("ping", '{"type": "ping"}')
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class ClientLeft(Exception):
    """The client has closed the connection."""


class Ended(Exception):
    """The answer ends early. ``is_open`` says that the connection stays usable."""

    def __init__(self, *, is_open: bool = False) -> None:
        super().__init__()
        self.is_open = is_open


class Playback:
    """One streamed response on one connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        scenario: Scenario,
        *,
        is_chat: bool = False,
    ) -> None:
        self._is_chat = is_chat  # Chat Completions have no event names and no pings
        self._reader = reader
        self._writer = writer
        self._scenario = scenario
        self._newline = "\r\n" if scenario.crlf else "\n"
        self._glued: list[bytes] = []
        self._sent = 0
        self._started = 0.0

    async def play(self, frames: Iterable[Frame]) -> None:
        """Write the body of a chunked response. Raise ClientLeft or Ended if it breaks off."""
        scenario = self._scenario
        for number, frame in enumerate(frames):
            if frame.is_delta or frame.is_end:
                await self._break_if_due(is_last=not frame.is_delta)
            if frame.is_delta:
                await self._keep_pace()
                if scenario.ping and self._sent % scenario.ping == 0 and not self._is_chat:
                    await self._write_frame(PING_FRAME)
                self._sent += 1
            await self._write_frame(frame)
            if number == 0 and scenario.first_delay:
                await self._flush()
                await self.pause(scenario.first_delay)
        await self._flush()
        if scenario.linger:
            await self.pause(scenario.linger)
        self._writer.write(b"0\r\n\r\n")
        await self._drain()

    async def pause(self, seconds: float) -> None:
        """Wait. Raise ClientLeft at once if the client leaves meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self.wait_for_leaving()
        except TimeoutError:
            return

    async def wait_for_leaving(self) -> None:
        # A client sends nothing while it waits for an answer, so when this read ends, the
        # client has left.
        with suppress(OSError):
            await self._reader.read(1)
        raise ClientLeft

    async def _keep_pace(self) -> None:
        rate = self._scenario.rate
        if not rate or self._sent < self._scenario.ahead:
            return
        now = time.monotonic()
        self._started = self._started or now
        wait = self._started + (self._sent - self._scenario.ahead) / rate - now
        if wait > 0:
            await asyncio.sleep(wait)

    async def _write_frame(self, frame: Frame) -> None:
        data = frame.data
        if STAMP in data:
            data = data.replace(STAMP, f"~{time.monotonic_ns()}~ ")
        end = self._newline
        name = f"event: {frame.name}{end}" if frame.name else ""
        event = f"{name}data: {data}{end}{end}".encode()
        if self._scenario.glue > 1:
            self._glued.append(event)
            if len(self._glued) < self._scenario.glue:
                return
            event = b"".join(self._glued)
            self._glued = []
        await self._write(event)

    async def _flush(self) -> None:
        if self._glued:
            event, self._glued = b"".join(self._glued), []
            await self._write(event)

    async def _write(self, data: bytes) -> None:
        if self._reader.at_eof() or self._writer.is_closing():
            raise ClientLeft
        if self._scenario.split:
            await self._write_pieces(data)
            return
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        if self._writer.transport.get_write_buffer_size() > WRITE_BUFFER:
            await self._drain()
        elif not self._scenario.rate or self._sent < self._scenario.ahead:
            # Let other tasks run between the events of a burst.
            await asyncio.sleep(0)

    async def _write_pieces(self, data: bytes) -> None:
        size = self._scenario.split
        for at in range(0, len(data), size):
            piece = data[at : at + size]
            self._writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await self._drain()
            await asyncio.sleep(0)

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError as error:
            raise ClientLeft from error

    async def _break_if_due(self, *, is_last: bool) -> None:
        scenario = self._scenario
        breaks = (
            (scenario.error_after, self._send_error),
            (scenario.garbage_after, self._send_garbage),
            (scenario.drop_after, self._drop),
            (scenario.short_after, self._cut_short),
            (scenario.end_after, self._end_early),
            (scenario.hang_after, self._hang),
        )
        for after, do_break in breaks:
            if after is not None and (self._sent == after or is_last):
                await do_break()

    async def _send_error(self) -> None:
        kind = self._scenario.error_type or "overloaded_error"
        message = self._scenario.error_message or "Overloaded"
        error = {"type": "error", "error": {"type": kind, "message": message}}
        await self._write_frame(Frame("" if self._is_chat else "error", json.dumps(error)))
        await self._end_early()

    async def _send_garbage(self) -> None:
        await self._write_frame(Frame("content_block_delta", '{"type": "content_block_de'))
        await self._end_early()

    async def _end_early(self) -> None:
        await self._flush()
        self._writer.write(b"0\r\n\r\n")
        raise Ended(is_open=True)

    async def _cut_short(self) -> None:
        await self._flush()
        self._writer.write(b"ff\r\nevent: content_block_delta\n")
        raise Ended

    async def _drop(self) -> None:
        await self._flush()
        await self._drain()
        reset(self._writer)
        raise Ended

    async def _hang(self) -> None:
        await self._flush()
        await self.wait_for_leaving()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection with RST rather than FIN."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
