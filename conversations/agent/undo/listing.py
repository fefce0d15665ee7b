"""Listing a folder's entries at one moment, and storing copies of contents that are not stored yet.

All files count, including caches and ``.git``. Links are listed as links. A file with the same
stamp as at its last reading is not read again, unless it had been written so shortly before that
reading that a later write could have left the same stamp.
"""

import json
import os
import stat
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings

from conversations.agent.files.paths import private_places, stamp_of
from conversations.agent.files.text_files import LRUCache
from conversations.agent.sandbox.repositories import GitPart
from conversations.archive.blobs import batch, blobs_folder, read_blob, remove_untouched, touch_blob
from conversations.domain.errors import NotFound, Rejected

from . import disk
from .disk import NOTHING, FileState, MissingFolder
from .records import open_trees, used_digests

# A file that was written less than this before it is read may change again without getting another
# stamp, because the clocks of file systems tick in steps of up to two seconds (FAT).
FRESH_NS = 2_000_000_000

# How long a blob is assumed to exist without a check. Code that removes blobs spares those that
# were touched within twice that time (purging of contents), or longer (``prune_blobs``).
TOUCHED_NS = 1800 * 10**9

MAX_CACHED_FOLDERS = 8  # Workspaces whose file digests are cached
MAX_PATH_CHARS = 4000

BATCH_FILES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderListing:
    """The entries of a folder, by path.

    ``unlisted`` has the folders whose entries are unknown, because there were too many or because
    the folder could not be opened. ``git`` has the parts that git obeys in the folder, or is None
    if they were not searched for. ``git_contents`` has the contents of git's configuration files
    and step files by digest, whatever their size."""

    entries: Mapping[str, FileState]
    unlisted: frozenset[str] = frozenset()
    git: Mapping[str, GitPart] | None = None
    git_contents: Mapping[str, bytes] = field(default_factory=dict)


# The cached values of a file: its stamp and state, when it was read, and when its blob was touched
type _CachedFile = tuple[tuple[int, ...], FileState, int, int]

# The cache of each folder's files. An entry is replaced as a whole, so two concurrent listings do
# no harm.
_file_cache = LRUCache[str, dict[str, _CachedFile]](size=MAX_CACHED_FOLDERS)


def make_listing(root: Path, *, earlier: FolderListing | None = None) -> FolderListing:
    """List the folder and store copies of its contents.

    ``earlier`` is a listing with which this one will be compared. Files that were read for it are
    read again, and files that were not read are not. Raise Rejected if there is no space for the
    copies."""
    work = _ListingBuilder(root, dict(_file_cache.find(str(root)) or {}))
    try:
        work.walk()
        work.choose(earlier.entries if earlier else {})
        work.read()
    except MissingFolder as error:
        raise Rejected(error.message, code="not_kept") from error
    except OSError as error:
        raise Rejected(
            "The workspace's files could not be copied: %(reason)s.",
            reason=error.strerror,
            code="not_kept",
        ) from error
    cache = {path: cached for path, cached in work.known.items() if path in work.entries}
    _file_cache.store(str(root), cache)
    return FolderListing(entries=work.entries, unlisted=frozenset(work.unlisted))


class _ListingBuilder:
    """A listing that is being built: first all names and stamps, then the contents to be read."""

    def __init__(self, root: Path, known: dict[str, _CachedFile]) -> None:
        self.root = root
        self.known = known
        self.entries: dict[str, FileState] = {}
        self.unlisted: set[str] = set()
        self.files: dict[str, os.stat_result] = {}
        self.links: list[str] = []

    def walk(self) -> None:
        private = set()
        for place in private_places():
            with suppress(OSError):
                stats = os.stat(place)
                private.add((stats.st_dev, stats.st_ino))
        self.entries[disk.ROOT] = FileState(mode=os.stat(self.root).st_mode, digest=NOTHING, size=0)
        folders = [""]
        # Outer folders come first, so the limit leaves out the deepest ones
        for folder in folders:
            try:
                with disk.open_folder(self.root, folder) as opened, os.scandir(opened) as entries:
                    children = []
                    for entry in entries:
                        with suppress(FileNotFoundError):
                            children.append((entry.name, entry.stat(follow_symlinks=False)))
                children = sorted(children)
            except (MissingFolder, PermissionError):
                if not folder:
                    raise
                self.unlisted.add(folder)
                continue
            count = len(self.entries) + len(self.files) + len(children)
            if count > settings.LOOM.snapshot_max_files + 1:
                self.unlisted.add(folder)
                continue
            for name, status in children:
                path = f"{folder}/{name}" if folder else name
                if (status.st_dev, status.st_ino) in private or len(path) > MAX_PATH_CHARS:
                    continue
                if stat.S_ISREG(status.st_mode):
                    self.files[path] = status
                elif stat.S_ISDIR(status.st_mode):
                    folders.append(path)
                    self.entries[path] = FileState(mode=status.st_mode, digest=NOTHING, size=0)
                else:
                    self.entries[path] = disk.unread_state(status)
                    if stat.S_ISLNK(status.st_mode):
                        self.links.append(path)

    def choose(self, earlier: Mapping[str, FileState]) -> None:
        """Choose the files to be read: small files first, until the limits are reached."""
        loom, total = settings.LOOM, 0
        for path in sorted(self.files, key=lambda path: (self.files[path].st_size, path)):
            status, before = self.files[path], earlier.get(path)
            size = status.st_size
            fits = size <= loom.snapshot_max_file_bytes and total + size <= loom.snapshot_max_bytes
            if before is not None and before.is_file:
                fits = before.is_read and size <= loom.snapshot_max_file_bytes
            if not fits:
                self.entries[path] = disk.unread_state(status)
                continue
            total += size
            stamp, state, read_at, touched_at = self.known.get(path, ((), None, 0, 0))
            # A file that was read right after it was written may have changed since without getting
            # another stamp.
            is_fresh = max(status.st_mtime_ns, status.st_ctime_ns) > read_at - FRESH_NS
            if state is None or stamp != stamp_of(status) or is_fresh:
                continue
            now = time.time_ns()
            if now - touched_at > TOUCHED_NS:
                if not touch_blob(state.digest):
                    continue
                self.known[path] = (stamp, state, read_at, now)
            self.entries[path] = state

    def read(self) -> None:
        """Read the files that are not cached, in batches."""
        waiting = sorted({*self.links, *(self.files.keys() - self.entries.keys())})
        for start in range(0, len(waiting), BATCH_FILES):
            with batch() as blobs:
                for path in waiting[start : start + BATCH_FILES]:
                    now = time.time_ns()
                    state = status = None
                    with suppress(MissingFolder), disk.folder_of(self.root, path) as (folder, name):
                        state, status = disk.read_entry(
                            folder, name, limit=settings.LOOM.snapshot_max_file_bytes, blobs=blobs
                        )
                    if state is None or status is None:
                        self.entries.pop(path, None)  # it has been removed meanwhile
                    else:
                        self.entries[path] = state
                        if state.is_file and state.is_read:
                            self.known[path] = (stamp_of(status), state, now, now)


def dump_listing(listing: FolderListing, *, owner: str) -> bytes:
    """Return the listing as the content of a blob that differs for each ``owner``."""
    entries = [
        [disk.stored_path(path), s.mode, s.digest, s.size, int(s.has_copy) + 2 * int(s.is_read)]
        for path, s in listing.entries.items()
    ]
    unlisted = [disk.stored_path(path) for path in sorted(listing.unlisted)]
    value = {"v": 1, "owner": owner, "unlisted": unlisted, "entries": entries}
    if listing.git is not None:
        value["git"] = [[path, part.kind, part.state] for path, part in listing.git.items()]
        value["git_contents"] = {
            digest: content.decode("latin-1") for digest, content in listing.git_contents.items()
        }
    return zlib.compress(json.dumps(value).encode(), level=1)


def load_listing(data: bytes) -> FolderListing:
    value: dict[str, Any] = json.loads(zlib.decompress(data))
    return FolderListing(
        entries={
            disk.real_path(path): FileState(
                mode=mode,
                digest=digest,
                size=size,
                has_copy=bool(flags & 1),
                is_read=bool(flags & 2),
            )
            for path, mode, digest, size, flags in value["entries"]
        },
        unlisted=frozenset(disk.real_path(path) for path in value["unlisted"]),
        git={path: GitPart(kind, state) for path, kind, state in value["git"]}
        if "git" in value
        else None,
        git_contents={
            digest: content.encode("latin-1")
            for digest, content in value.get("git_contents", {}).items()
        },
    )


# Removing contents that are no longer referred to

MIN_UNTOUCHED_DAYS = 2  # Newer blobs always stay (see ``TOUCHED_NS``)


def prune_blobs(*, days: int, dry_run: bool) -> dict[str, int]:
    """Remove blobs that are not referred to and were not touched for ``days`` days.

    Return how many contents were removed (or would be, with ``dry_run``) and how many were kept,
    and their bytes: ``removed``, ``removed_bytes``, ``kept`` and ``kept_bytes``."""
    newest = time.time() - max(days, MIN_UNTOUCHED_DAYS) * 24 * 3600
    # The files are listed first, so a blob that is written while the references are read is not
    # among them. A listed blob that comes into use meanwhile is touched, and ``remove_untouched``
    # checks that.
    files = list(_files())
    used = used_digests() | listed_digests()
    counts = dict.fromkeys(("removed", "removed_bytes", "kept", "kept_bytes"), 0)
    for path, status in files:
        try:
            digest = bytes.fromhex(path.parent.name + path.name)
        except ValueError:
            digest = b""  # a draft that was left by a dead process
        is_kept = digest in used or status.st_mtime > newest
        if not is_kept and not dry_run:
            if digest:
                is_kept = not remove_untouched(digest.hex(), since=newest)
            else:
                path.unlink(missing_ok=True)
        counter = "kept" if is_kept else "removed"
        counts[counter] += 1
        counts[f"{counter}_bytes"] += status.st_size
    return counts


def _files() -> Iterator[tuple[Path, os.stat_result]]:
    for folder, _, names in os.walk(blobs_folder()):
        for name in names:
            with suppress(FileNotFoundError):
                path = Path(folder, name)
                yield path, path.stat()


def listed_digests() -> set[bytes]:
    """Return the digests of contents that running or interrupted commands may have to restore."""
    digests = set()
    for tree in open_trees():
        try:
            listing = load_listing(read_blob(tree))
        except NotFound:
            continue
        digests |= {bytes.fromhex(state.digest) for state in listing.entries.values()}
    return digests
