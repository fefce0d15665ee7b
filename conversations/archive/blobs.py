"""Contents by their SHA-256 digest, in the data folder: snapshots and attachments.

A blob is written once, whole and durably, and never changes. It lies in
``<data>/blobs/ab/cdef…``, readable only by the server.
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

# Of a batch. More blobs are flushed at once with everything that the system has to write: a disk
# takes milliseconds for each flush.
MAX_SINGLE_FLUSHES = 16


def put_blob(data: bytes) -> str:
    """Keep the content; returns its digest. It is on disk when this returns."""
    with batch() as kept:
        return kept.put(data)


def read_blob(digest: str) -> bytes:
    """The content. Raises NotFound where there is none."""
    with _found():
        return blob_path(digest).read_bytes()


def size_of_blob(digest: str) -> int:
    """Bytes. Raises NotFound where there is none."""
    with _found():
        return blob_path(digest).stat().st_size


@contextmanager
def _found() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound("This content is no longer stored.") from error


def has_blob(digest: str) -> bool:
    """False too for what is no digest."""
    with suppress(NotFound):
        return blob_path(digest).exists()
    return False


def touch_blob(digest: str) -> bool:
    """Say that the blob is in use, so that it is not removed soon; whether there is one."""
    try:
        os.utime(blob_path(digest))
    except FileNotFoundError:
        return False
    return True


def blob_path(digest: str) -> Path:
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise NotFound("This is not a valid content digest.")
    return blobs_folder() / digest[:2] / digest[2:]


def blobs_folder() -> Path:
    return Path(settings.LOOM.data_dir) / "blobs"


class BlobBatch:
    """Contents that become blobs together, when the batch ends. See :func:`batch`."""

    def __init__(self) -> None:
        self._drafts: dict[str, Path] = {}

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        if not self._has(digest):
            with self._draft() as (draft, path):
                draft.write(data)
            self._drafts[digest] = path
        return digest

    def copy(self, source: BinaryIO) -> tuple[str, int]:
        """Keep what an open file has from here on, of any size; returns the digest and
        how many bytes it was."""
        first = source.read(PIECE_BYTES)
        if len(first) < PIECE_BYTES:
            return self.put(first), len(first)
        digest, size = hashlib.sha256(first), len(first)
        with self._draft() as (draft, path):
            draft.write(first)
            while piece := source.read(PIECE_BYTES):
                digest.update(piece)
                draft.write(piece)
                size += len(piece)
        name = digest.hexdigest()
        if self._has(name):
            path.unlink()
        else:
            self._drafts[name] = path
        return name, size

    def _has(self, digest: str) -> bool:
        return digest in self._drafts or touch_blob(digest)

    @contextmanager
    def _draft(self) -> Iterator[tuple[BinaryIO, Path]]:
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
        """Flush the drafts, then give them their names."""
        if len(self._drafts) > MAX_SINGLE_FLUSHES:
            os.sync()
        else:
            for draft in self._drafts.values():
                _sync(draft)
        folders = set()
        for digest, draft in self._drafts.items():
            path = blob_path(digest)
            if path.parent not in folders:
                path.parent.mkdir(mode=0o700, exist_ok=True)
            os.replace(draft, path)
            folders.add(path.parent)
        for folder in folders:
            _sync(folder)
        if folders:
            _sync(blobs_folder())
        self._drafts.clear()

    def drop(self) -> None:
        for draft in self._drafts.values():
            draft.unlink(missing_ok=True)


@contextmanager
def batch() -> Iterator[BlobBatch]:
    """Many contents at once: they are on disk when the block has ended."""
    kept = BlobBatch()
    try:
        yield kept
        kept.save()
    finally:
        kept.drop()


def remove_blob(digest: str) -> None:
    """Remove a content that nothing refers to."""
    blob_path(digest).unlink(missing_ok=True)


def remove_untouched(digest: str, *, since: float) -> bool:
    """Remove a content that nothing refers to, unless somebody said after ``since`` (in
    seconds since 1970) that it is in use. False: it stays."""
    # It is moved away first: who touches it before that is seen, who comes after it finds
    # nothing and writes it anew. What a dead process left there is seen to as well.
    path = blob_path(digest)
    aside = path.with_name(f".{path.name}")
    # A file that is open for writing, since NFS gives no lock on a folder.
    lock = Path(settings.LOOM.data_dir) / "run" / "remove-content.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file, suppress(FileNotFoundError):
        fcntl.flock(file, fcntl.LOCK_EX)  # nobody else removes anything meanwhile
        with suppress(FileNotFoundError):
            path.rename(aside)
        if aside.stat().st_mtime > since:
            aside.replace(path)  # the same content, in case it was written anew
            return False
        aside.unlink()
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
