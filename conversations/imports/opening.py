"""The files of what was given: one file, a folder, or a ZIP archive.

An archive is read where it lies: nothing is unpacked but a database, which needs a file,
and that into a folder which goes again. What would make an archive grow without bounds is
refused before it is read: too many files, too much in all, or much more than its size.
"""

import io
import lzma
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import BinaryIO, cast

from .lines import Item, Skipped

MAX_FILES = 50_000
MAX_RATIO = 200
"""Of what a file grows to over its size in the archive; text shrinks to a fifth, a tenth."""

SMALL = 10 * 1024 * 1024
"""What is smaller may have any ratio."""

MAX_DIRECTORY_BYTES = 16 * 1024 * 1024
"""Of an archive's list of its files, which is read as a whole and takes many times its size
of memory."""


DAMAGE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError)
"""What reading a file of a damaged archive raises, or of one packed in a way of its own."""


class NotReadable(ValueError):
    """What was given cannot be read at all; the text says why, for a person."""


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """``total``: bytes of all files together, 0: any number."""

    files: int = MAX_FILES
    total: int = 0


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file by its name in what was given. ``path`` where it lies on the disk."""

    name: str
    size: int
    path: Path | None = None
    archive: zipfile.ZipFile | None = None
    info: zipfile.ZipInfo | None = None

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Its bytes. Raises what :data:`DAMAGE` names."""
        if self.archive is not None and self.info is not None:
            with self.archive.open(self.info) as file:
                yield cast("BinaryIO", file)
            return
        assert self.path is not None
        with self.path.open("rb") as file:
            yield file

    @contextmanager
    def on_disk(self) -> Iterator[Path]:
        """A path to its bytes, for what cannot read a stream."""
        if self.path is not None:
            yield self.path
            return
        with TemporaryDirectory(prefix="loom-import-") as folder, self.open() as file:
            path = Path(folder) / "file"
            with path.open("wb") as copy:
                copyfileobj(file, copy, 1024 * 1024)
            yield path


@dataclass(slots=True)
class ImportSource:
    """All files of one import, what of them was refused, and the names of those that
    belong to a conversation."""

    name: str
    files: list[SourceFile] = field(default_factory=list)
    refused: list[Item] = field(default_factory=list)
    used: set[str] = field(default_factory=set)


@contextmanager
def open_source(path: Path, *, name: str, limits: ArchiveLimits) -> Iterator[ImportSource]:
    """The files of a file, a folder or a ZIP archive. Raises NotReadable and OSError."""
    if path.is_dir():
        yield _open_folder(path, name, limits)
        return
    if not zipfile.is_zipfile(path) or _is_database(path):
        yield ImportSource(name, [SourceFile(name, path.stat().st_size, path=path)])
        return
    try:
        with _ArchiveFile(path) as file, zipfile.ZipFile(file) as archive:
            file.most = None
            yield _list_archive(archive, name, limits)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise NotReadable(f"The archive is damaged or protected: {error}.") from error


class _ArchiveFile(io.FileIO):
    """``most``: bytes that may be read at once, until the archive is open."""

    most: int | None = MAX_DIRECTORY_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        if self.most is not None and size is not None and size > self.most:
            raise NotReadable("The archive's list of its files is too long.")
        return super().read(-1 if size is None else size) or b""


def _is_database(path: Path) -> bool:
    """Any file that ends like an archive is taken for one; this may be its first bytes."""
    with path.open("rb") as file:
        return file.read(6) == b"SQLite"


def _open_folder(path: Path, name: str, limits: ArchiveLimits) -> ImportSource:
    source = ImportSource(name)
    for folder, folders, files in path.walk():
        folders.sort()
        for file in sorted(files):
            found = folder / file
            if not stat.S_ISREG(found.lstat().st_mode):
                continue
            shown = found.relative_to(path).as_posix()
            source.files.append(SourceFile(shown, found.stat().st_size, path=found))
            if len(source.files) > limits.files:
                raise NotReadable(f"The folder has more than {limits.files:,} files.")
    return source


def _list_archive(archive: zipfile.ZipFile, name: str, limits: ArchiveLimits) -> ImportSource:
    infos = [info for info in archive.infolist() if not info.is_dir()]
    if len(infos) > limits.files:
        raise NotReadable(f"The archive has more than {limits.files:,} files.")
    total = sum(info.file_size for info in infos)
    if limits.total and total > limits.total:
        raise NotReadable(
            f"The archive would grow to {total:,} bytes; at most {limits.total:,} are read."
        )
    source = ImportSource(name)
    for info in infos:
        reason = _reason_against(info)
        if reason:
            source.refused.append(Skipped(info.filename, reason))
        else:
            source.files.append(
                SourceFile(info.filename, info.file_size, archive=archive, info=info)
            )
    return source


def _reason_against(info: zipfile.ZipInfo) -> str:
    path = PurePosixPath(info.filename.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
        return "its name leads outside the archive"
    if stat.S_ISLNK(info.external_attr >> 16):
        return "it is a link"
    if info.flag_bits & 1:
        return "it is protected by a password"
    if info.file_size > SMALL and info.file_size > MAX_RATIO * max(1, info.compress_size):
        return f"it would grow to more than {MAX_RATIO} times its size"
    return ""
