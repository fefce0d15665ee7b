"""What holds for a server of either kind: its address, and how much it takes and keeps."""

import re
import socket
from collections.abc import Iterable

from django.conf import settings
from django.utils.datastructures import CaseInsensitiveMapping

from conversations.api.middleware import read_token

UPLOADS = re.compile(r"/import/|/w/[^/]+/files/upload/|/api/v1/workspaces/[^/]+/imports")
"""Where files are uploaded that may be larger than other requests."""

TOO_LARGE = b"This is larger than this server takes.\n"

MAX_HEAD_BYTES = 65_536
"""Of a request's address and headers: what is too long for a field gets the page's own words."""

MAX_WAITING_CHARS = 1_000_000
"""Characters that may wait for a page which does not read before it is closed."""

CLOSE_SECONDS = 5.0
"""In which a page that is busy, or did not read, can still learn why it is closed."""

MAX_FRAME_SENT_BYTES = 64_000_000  # bytes of the largest frame that is sent to a page


def max_request_bytes() -> int:
    """Bytes of a request: a form with as many files as a message can have, and its text, or what
    the API takes."""
    loom = settings.LOOM
    files: int = loom.max_attachments * (loom.max_attachment_bytes + 1_000)
    return max(files + int(loom.max_frame_bytes), int(loom.max_api_bytes)) + 100_000


def max_upload_bytes() -> int:
    """Bytes of a form that uploads files to be imported, or into a workspace."""
    largest = max(settings.LOOM.max_import_bytes, settings.LOOM.max_upload_bytes)
    return max(max_request_bytes(), int(largest) + 100_000)


def token_in(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The personal token that a request has, or nothing."""
    text = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    return read_token(CaseInsensitiveMapping(text)) or ""


def open_listener(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(1024)
    listener.setblocking(False)
    return listener
