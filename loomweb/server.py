"""Limits and functions that Daphne and uvicorn share."""

import re
import socket
from collections.abc import Iterable

from django.conf import settings
from django.utils.datastructures import CaseInsensitiveMapping

from conversations.api.middleware import read_token

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


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raise OSError if the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(1024)
    listener.setblocking(False)
    return listener
