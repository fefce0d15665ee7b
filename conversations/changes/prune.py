"""Removing contents that nothing refers to any more.

A folder's listing keeps what it finds before anybody knows what will change; what did
not change is referred to by nothing afterwards. Whoever counts on a blob touches it, and
what was touched lately stays: no listing takes days.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import time

from conversations.archive.blobs import blobs_folder, read_blob
from conversations.archive.references import open_trees, used_digests
from conversations.domain.errors import NotFound

from .listing import load_listing

SAFE_DAYS = 2
"""Blobs that were touched since stay in any case (see ``listing.TOUCHED_NS``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Contents and their bytes: those that went, or would go, and those that stay."""

    removed: int
    removed_bytes: int
    kept: int
    kept_bytes: int


def prune_blobs(*, days: int, dry_run: bool) -> Pruned:
    """Remove what nothing refers to and nobody touched for so many days."""
    newest = time() - max(days, SAFE_DAYS) * 24 * 3600
    # Listed first: what comes into use while the references are read is not old.
    files = list(_files())
    used = used_digests() | listed_digests()
    removed = removed_bytes = kept = kept_bytes = 0
    for path, digest, size, touched in files:
        if digest in used or touched > newest:
            kept, kept_bytes = kept + 1, kept_bytes + size
            continue
        removed, removed_bytes = removed + 1, removed_bytes + size
        if not dry_run:
            path.unlink(missing_ok=True)
    return Pruned(removed=removed, removed_bytes=removed_bytes, kept=kept, kept_bytes=kept_bytes)


def _files() -> Iterator[tuple[Path, bytes, int, float]]:
    """Every file of the store with the digest it is named after; drafts that a dead
    process left have none."""
    for folder, _, names in os.walk(blobs_folder()):
        for name in names:
            path = Path(folder, name)
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            yield path, _digest_of(path), found.st_size, found.st_mtime


def _digest_of(path: Path) -> bytes:
    try:
        return bytes.fromhex(path.parent.name + path.name)
    except ValueError:
        return b""


def listed_digests() -> set[bytes]:
    """What commands that run, or are not settled yet, may have to put back."""
    found = set()
    for tree in open_trees():
        try:
            listing = load_listing(read_blob(tree))
        except NotFound:
            continue
        found |= {bytes.fromhex(state.digest) for state in listing.entries.values()}
    return found
