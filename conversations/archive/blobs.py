"""Blobs: contents of snapshots and attachments, stored by their SHA-256 digest.

A blob is written once, completely and durably, and never changes. Its path is
``<data>/blobs/ab/cdef…`` in the data folder, and only the server can read it.
"""

import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from django.conf import settings

from conversations.domain.errors import NotFound

PIECE_BYTES = 1 << 20

DIGEST = re.compile(r"[0-9a-f]{64}")

# The number of blobs of a batch that are flushed one by one. Larger batches use ``os.sync``, which
# flushes everything on the system, because a disk takes milliseconds for each flush.
MAX_SINGLE_FLUSHES = 16


def put_blob(data: bytes) -> str:
    """Store the content and return its digest. The blob is on disk when this function returns."""
    with batch() as blobs:
        return blobs.put(data)


def read_blob(digest: str) -> bytes:
    """Return the content. Raise NotFound if there is no such blob."""
    with _missing_as_not_found():
        return blob_path(digest).read_bytes()


def size_of_blob(digest: str) -> int:
    """Return the size in bytes. Raise NotFound if there is no such blob."""
    with _missing_as_not_found():
        return blob_path(digest).stat().st_size


@contextmanager
def _missing_as_not_found() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound("This content is no longer stored.") from error


def has_blob(digest: str) -> bool:
    """Return whether there is such a blob. An invalid digest gives False."""
    with suppress(NotFound):
        return blob_path(digest).exists()
    return False


def touch_blob(digest: str) -> bool:
    """Mark the blob as used, so that it is not removed soon, and return whether it exists."""
    try:
        os.utime(blob_path(digest))
    except FileNotFoundError:
        return False
    return True


def blob_path(digest: str) -> Path:
    if not DIGEST.fullmatch(digest):
        raise NotFound("This is not a valid content digest.")
    return blobs_folder() / digest[:2] / digest[2:]


def blobs_folder() -> Path:
    return Path(settings.LOOM.data_dir) / "blobs"


class BlobBatch:
    """Contents that are stored together when the batch ends. See :func:`batch`."""

    def __init__(self) -> None:
        self._temporary_files: dict[str, Path] = {}

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        if not self._has(digest):
            with self._open_temporary() as (file, path):
                file.write(data)
            self._temporary_files[digest] = path
        return digest

    def copy(self, source: BinaryIO) -> tuple[str, int]:
        """Store the rest of an open file of any size, and return its digest and size in bytes."""
        first = source.read(PIECE_BYTES)
        if len(first) < PIECE_BYTES:
            return self.put(first), len(first)
        digest, size = hashlib.sha256(first), len(first)
        with self._open_temporary() as (file, path):
            file.write(first)
            while piece := source.read(PIECE_BYTES):
                digest.update(piece)
                file.write(piece)
                size += len(piece)
        name = digest.hexdigest()
        if self._has(name):
            path.unlink()
        else:
            self._temporary_files[name] = path
        return name, size

    def _has(self, digest: str) -> bool:
        return digest in self._temporary_files or touch_blob(digest)

    @contextmanager
    def _open_temporary(self) -> Iterator[tuple[BinaryIO, Path]]:
        folder = blobs_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file, name = tempfile.mkstemp(dir=folder, prefix=".")
        try:
            with os.fdopen(file, "wb") as draft:
                yield draft, Path(name)
        except BaseException:
            os.unlink(name)
            raise

    def save(self) -> None:
        """Flush the temporary files, then rename them."""
        if len(self._temporary_files) > MAX_SINGLE_FLUSHES:
            os.sync()
        else:
            for file in self._temporary_files.values():
                _sync(file)
        folders = set()
        for digest, file in self._temporary_files.items():
            path = blob_path(digest)
            if path.parent not in folders:
                path.parent.mkdir(mode=0o700, exist_ok=True)
            os.replace(file, path)
            folders.add(path.parent)
        for folder in folders:
            _sync(folder)
        if folders:
            _sync(blobs_folder())
        self._temporary_files.clear()

    def drop(self) -> None:
        for file in self._temporary_files.values():
            file.unlink(missing_ok=True)


@contextmanager
def batch() -> Iterator[BlobBatch]:
    """Store many contents at once. They are on disk when the block has ended."""
    blobs = BlobBatch()
    try:
        yield blobs
        blobs.save()
    finally:
        blobs.drop()


def remove_blob(digest: str) -> None:
    """Remove a blob that is not referenced."""
    blob_path(digest).unlink(missing_ok=True)


def remove_untouched(digest: str, *, since: float) -> bool:
    """Remove an unreferenced blob unless it was touched after ``since``.

    ``since`` is in seconds since 1970. Return False if the blob was touched and stays.
    """
    # Rename the blob before checking its time. A touch before the rename is seen by the check. A
    # writer that comes after the rename finds no blob and writes it again. This also handles a file
    # that a dead process left under the temporary name.
    path = blob_path(digest)
    aside = path.with_name(f".{path.name}")
    # Lock a file that is open for writing, because NFS does not support locks on a folder.
    lock = Path(settings.LOOM.data_dir) / "run" / "remove-content.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file, suppress(FileNotFoundError):
        fcntl.flock(file, fcntl.LOCK_EX)  # only one process removes blobs at a time
        with suppress(FileNotFoundError):
            path.rename(aside)
        if aside.stat().st_mtime > since:
            aside.replace(path)  # harmless if the blob was written again: the content is the same
            return False
        aside.unlink()
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
