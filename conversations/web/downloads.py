"""Long files that are written while the browser reads them."""

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async

PIECE_CHARS = 64_000


async def in_threads(pieces: Iterator[str]) -> AsyncIterator[bytes]:
    """The text in pieces of about this size: the event loop does not wait for the
    database, and no more than one piece is held."""
    while piece := await sync_to_async(_take)(pieces):
        yield piece


def _take(pieces: Iterator[str]) -> bytes:
    taken: list[str] = []
    size = 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= PIECE_CHARS:
            break
    return "".join(taken).encode("utf-8", "backslashreplace")
