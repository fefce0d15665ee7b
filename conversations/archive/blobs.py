"""Contents by their SHA-256 digest, in the data folder: snapshots and attachments.

A blob is written once, whole and durably, and never changes. It lies in
``<data>/blobs/ab/cdef…``, readable only by the server.
"""

import hashlib
import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from django.conf import settings

from conversations.domain.errors import NotFound


def put_blob(data: bytes) -> str:
    """Keep the content; returns its digest. It is on disk when this returns."""
    digest = hashlib.sha256(data).hexdigest()
    path = blob_path(digest)
    if path.exists():
        return digest
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as draft:
        draft.write(data)
        draft.flush()
        os.fsync(draft.fileno())
    os.replace(draft.name, path)
    _sync_folder(path.parent)
    return digest


def read_blob(digest: str) -> bytes:
    """The content. Raises NotFound where there is none."""
    try:
        return blob_path(digest).read_bytes()
    except FileNotFoundError as error:
        raise NotFound("This content is not kept any more.") from error


def has_blob(digest: str) -> bool:
    return blob_path(digest).exists()


def blob_path(digest: str) -> Path:
    folder = Path(settings.LOOM.data_dir) / "blobs"
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise NotFound("This is not the name of a content.")
    return folder / digest[:2] / digest[2:]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
