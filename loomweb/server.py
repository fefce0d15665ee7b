"""Limits and functions that Daphne and uvicorn share."""

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.utils.datastructures import CaseInsensitiveMapping

from conversations.api.middleware import read_token
from conversations.archive.storage import translate_storage_error

logger = logging.getLogger(__name__)

type Receive = Callable[[], Awaitable[dict[str, Any]]]
type Send = Callable[[dict[str, Any]], Awaitable[None]]

UPLOADS = re.compile(r"/import/|/w/[^/]+/files/upload/|/api/v1/workspaces/[^/]+/imports")
"""Paths of file uploads, which may be larger than other requests."""

TOO_LARGE = b"This is larger than this server takes.\n"

MAX_HEAD_BYTES = 65_536
"""Limit for a request's URL and headers. It is high enough that a value which is too long for a
field reaches the page and gets its error message."""

MAX_WAITING_CHARS = 1_000_000
"""Characters that may wait for a page that does not read before its socket is closed."""

CLOSE_SECONDS = 5.0
"""Time in which a page that is busy or did not read can still receive the reason for a close."""

LINGER_SECONDS = 10.0
MAX_LINGER_BYTES = 100_000_000
"""Limits for what a refused client still sends and the server drops (RFC 9112, section 9.6).

If the server closed a connection with unread data, the system would reset it. A proxy that sends
the body then answers 502 instead of passing on the error."""

MAX_FRAME_SENT_BYTES = 64_000_000  # largest frame that is sent to a page


def max_request_bytes() -> int:
    """Return the limit for a request in bytes.

    It allows a message with its text and the maximum number of files, or the largest request to
    the API.
    """
    loom = settings.LOOM
    files: int = loom.max_attachments * (loom.max_attachment_bytes + 1_000)
    return max(files + int(loom.max_frame_bytes), int(loom.max_api_bytes)) + 100_000


def max_upload_bytes() -> int:
    """Return the limit in bytes for an upload of files to import or to store in a workspace."""
    largest = max(settings.LOOM.max_import_bytes, settings.LOOM.max_upload_bytes)
    return max(max_request_bytes(), int(largest) + 100_000)


def token_in(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the request's personal token, or an empty string."""
    text = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    return read_token(CaseInsensitiveMapping(text)) or ""


async def refuse(receive: Receive, send: Send, status: int, text: bytes) -> None:
    """Send an error and close the connection. Data that the browser still sends is dropped."""
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(text)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text, "more_body": True})
    received = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while received <= MAX_LINGER_BYTES and (message := await receive()).get("more_body"):
                received += len(message["body"])
    await send({"type": "http.response.body"})


def full_disk_text(error: OSError, *, method: str) -> bytes:
    """Return the response to a body for which the disk has no room. Raise any other error."""
    translated = translate_storage_error(error)
    if translated is None:
        raise error
    fields = {"error_code": translated.code, "method": method}
    logger.warning("storage_error", extra={"fields": fields})
    return f"{translated.message}\n".encode()


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raise OSError if the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(1024)
    listener.setblocking(False)
    return listener
