"""Copies of sessions that are purged, in a folder or a bucket.

A copy is the session's interchange lines, compressed. It is read back and compared
before anything is purged.
"""

import gzip
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from tempfile import SpooledTemporaryFile
from typing import IO, Any, BinaryIO, cast

from django.conf import settings
from django.core.files import File
from django.core.files.storage import Storage, storages

from conversations.archive.purge import ColdCopy
from conversations.domain.errors import NotFound, Rejected, Unavailable
from conversations.features.interchange.export_sessions import session_lines
from conversations.models import Session

STORAGE = "cold"
"""Its name among Django's storages."""

PIECE = 1 << 20
IN_MEMORY = 16 * PIECE


def has_cold_storage() -> bool:
    """Whether this server has one (``LOOM_COLD_STORAGE``)."""
    return STORAGE in settings.STORAGES


def require_cold_storage() -> None:
    """Raises Rejected where there is none."""
    if not has_cold_storage():
        raise Rejected(
            "This server has no cold storage. See LOOM_COLD_STORAGE.", code="no_cold_storage"
        )


def keep_copy(session: Session) -> ColdCopy:
    """Put a copy of the session there; it is there for certain when this returns.
    Raises Rejected where there is no cold storage, Unavailable where it fails."""
    storage = _storage()
    with SpooledTemporaryFile(max_size=IN_MEMORY) as draft:
        _write(session, cast(IO[bytes], draft))
        digest = _digest_of(cast(BinaryIO, draft))
        draft.seek(0)
        wanted = f"{session.workspace.slug}/{session.uuid}.jsonl.gz"
        with _answering():
            name = storage.save(wanted, File(cast(Any, draft), name=wanted))
            _flush(storage, name)
            with storage.open(name, "rb") as kept:
                is_whole = _digest_of(cast(BinaryIO, kept)) == digest
    if not is_whole:
        raise Unavailable("The copy in cold storage is not what was written.", code="cold_storage")
    return ColdCopy(
        name=name,
        digest=digest,
        turn_digest=session.turn_digest,
        event_digest=session.event_digest,
    )


def drop_copy(copy: ColdCopy) -> None:
    """Remove a copy of a session that was not purged after all."""
    with suppress(Unavailable), _answering():
        _storage().delete(copy.name)


def _write(session: Session, draft: IO[bytes]) -> None:
    """The lines that :func:`session_lines` gives as of when the session is read anew."""
    with gzip.GzipFile(fileobj=draft, mode="wb", filename="", mtime=0) as packed:
        for line in session_lines(session):
            packed.write(f"{line}\n".encode("utf-8", "backslashreplace"))


@contextmanager
def open_copy(name: str, *, digest: str) -> Iterator[BinaryIO]:
    """The lines of a copy. Raises NotFound where there is none of that name, Rejected
    where it is not what was written, Unavailable where the storage fails."""
    storage = _storage()
    with _answering():
        is_there = storage.exists(name)
    if not is_there:
        raise NotFound(f"Cold storage has no {name}.")
    with SpooledTemporaryFile(max_size=IN_MEMORY) as copy:
        with _answering(), storage.open(name, "rb") as kept:
            while piece := kept.read(PIECE):
                copy.write(piece)
        if _digest_of(cast(BinaryIO, copy)) != digest:
            raise Rejected(f"{name} is not what was written.", code="cold_copy_damaged")
        copy.seek(0)
        with gzip.GzipFile(fileobj=cast(IO[bytes], copy), mode="rb") as lines:
            yield cast(BinaryIO, lines)


def _storage() -> Storage:
    require_cold_storage()
    return storages[STORAGE]


@contextmanager
def _answering() -> Iterator[None]:
    """Whatever a storage raises: each kind has errors of its own."""
    try:
        yield
    except Exception as error:
        name = type(error).__name__
        raise Unavailable(f"Cold storage failed ({name}: {error}).", code="cold_storage") from error


def _digest_of(file: BinaryIO) -> str:
    file.seek(0)
    digest = hashlib.sha256()
    while piece := file.read(PIECE):
        digest.update(piece)
    return digest.hexdigest()


def _flush(storage: Storage, name: str) -> None:
    """A folder's file survives a power cut, and so does its name."""
    try:
        path = storage.path(name)
    except NotImplementedError:
        return
    for place in (path, os.path.dirname(path)):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
