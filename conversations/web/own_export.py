"""What the installation has of a person, as a file: a ZIP that is written as fast as the
browser reads it."""

import zipfile
from collections.abc import AsyncIterator, Callable, Iterator

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.utils import timezone
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_safe

from conversations.archive.own_data import account_text, own_session_text

from .access import sign_in_first

PIECE_BYTES = 64_000

FILES: dict[str, Callable[[User], Iterator[bytes]]] = {
    "account.json": account_text,
    "sessions.jsonl": own_session_text,
}
"""Name in the ZIP → what writes it. The sessions are an interchange file."""


@require_safe
async def account_export(request: HttpRequest) -> HttpResponseBase:
    user = await request.auser()
    if not isinstance(user, User):
        return sign_in_first()
    pieces = iter(()) if request.method == "HEAD" else zip_pieces(user)
    response = StreamingHttpResponse(_in_threads(pieces), content_type="application/zip")
    response["Content-Disposition"] = content_disposition_header(
        as_attachment=True, filename=f"loom-account-{timezone.localdate():%Y-%m-%d}.zip"
    )
    response["Cache-Control"] = "private, no-store"
    return response


class _Sink:
    """Where the ZIP is written to; what cannot be sought is written in one go."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._written.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        return

    def take(self) -> bytes:
        written, self._written = b"".join(self._written), []
        return written


def zip_pieces(user: User) -> Iterator[bytes]:
    """The ZIP; at most one piece of it is in memory."""
    sink, size = _Sink(), 0
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as whole:  # type: ignore[call-overload]
        for name, write in FILES.items():
            with whole.open(name, "w", force_zip64=True) as file:
                for data in write(user):
                    file.write(data)
                    size += len(data)
                    if size >= PIECE_BYTES:
                        size = 0
                        yield sink.take()
    yield sink.take()


async def _in_threads(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The event loop does not wait for the database."""
    while (piece := await sync_to_async(_take)(pieces)) is not None:
        yield piece


def _take(pieces: Iterator[bytes]) -> bytes | None:
    return next(pieces, None)
