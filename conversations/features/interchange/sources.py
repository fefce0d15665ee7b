"""Opening the source of an import: one file, a folder, or a ZIP archive.

An archive is read in place. Only a file that its reader needs on the disk, such as a database, is
unpacked, into a temporary folder. Archives that would expand too far are refused before they are
read: those with too many files, too large a total size, or too high a compression ratio.
"""

import codecs
import io
import json
import lzma
import re
import shutil
import sqlite3
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import IO, Any

from conversations.domain.errors import Rejected
from conversations.domain.messages import say
from conversations.domain.text import count_signs, count_values

from .lines import MAX_ITEM_VALUES, ImportNote, Item

MAX_FILES = 50_000

# The limit of a file's size over its compressed size. Text compresses five- to tenfold.
MAX_RATIO = 200
MAX_UNCHECKED_BYTES = 10 * 1024 * 1024  # A smaller file may have any ratio.

# The limit of an archive's file list, which is read at once and takes many times its size in
# memory.
MAX_DIRECTORY_BYTES = 16 * 1024 * 1024

# Errors when reading a file of an archive that is damaged or has an unsupported compression.
DAMAGE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError)


class UnreadableSource(Rejected):
    """The source cannot be read at all; the message says why."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the source. ``path`` is None for a file in an archive.

    ``open`` opens the file for reading bytes. Opening and reading raise :data:`DAMAGE`."""

    name: str
    size: int
    open: Callable[[], IO[bytes]]
    path: Path | None = None

    @contextmanager
    def on_disk(self) -> Iterator[Path]:
        """Yield a path of the file on the disk, for readers that cannot use a stream."""
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
    """The files of an import, notes on refused files, and the names of files that were used."""

    name: str
    files: list[SourceFile] = field(default_factory=list)
    refused: list[Item] = field(default_factory=list)
    used: set[str] = field(default_factory=set)


@contextmanager
def open_source(path: Path, *, name: str, max_bytes: int = 0) -> Iterator[ImportSource]:
    """Open a file, a folder or a ZIP archive.

    The files of an archive may have ``max_bytes`` bytes together; 0 means no limit. Raise
    UnreadableSource and OSError."""
    if path.is_dir():
        source = ImportSource(name)
        for folder, folders, files in path.walk():
            folders.sort()
            for file_path in (folder / file for file in sorted(files)):
                if not stat.S_ISREG(file_path.lstat().st_mode):
                    continue
                relative_name = file_path.relative_to(path).as_posix()
                source.files.append(_file_on_disk(relative_name, file_path))
                if len(source.files) > MAX_FILES:
                    raise UnreadableSource(
                        "The folder has more than %(count)s files.", count=f"{MAX_FILES:,}"
                    )
        yield source
        return
    with path.open("rb") as file:
        # A database may end like an archive, and is_zipfile() looks only at the end.
        is_database = file.read(6) == b"SQLite"
    if is_database or not zipfile.is_zipfile(path):
        yield ImportSource(name, [_file_on_disk(name, path)])
        return
    try:
        with _ArchiveFile(path) as packed, zipfile.ZipFile(packed) as archive:
            packed.max_read_bytes = None
            yield _list_archive(archive, name, max_bytes)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise UnreadableSource(
            "The archive is damaged or protected: %(error)s.", error=str(error)
        ) from error


def _file_on_disk(name: str, path: Path) -> SourceFile:
    return SourceFile(name, path.stat().st_size, lambda: path.open("rb"), path)


class _ArchiveFile(io.FileIO):
    """A file that limits the size of a single read until the archive is open."""

    max_read_bytes: int | None = MAX_DIRECTORY_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        limit = self.max_read_bytes
        if limit is not None and size is not None and size > limit:
            raise UnreadableSource("The archive's file list is too long.")
        return super().read(-1 if size is None else size) or b""


def _list_archive(archive: zipfile.ZipFile, name: str, max_bytes: int) -> ImportSource:
    infos = [info for info in archive.infolist() if not info.is_dir()]
    if len(infos) > MAX_FILES:
        raise UnreadableSource("The archive has more than %(count)s files.", count=f"{MAX_FILES:,}")
    total = sum(info.file_size for info in infos)
    if max_bytes and total > max_bytes:
        raise UnreadableSource(
            "The archive would expand to %(size)s bytes; the limit is %(limit)s.",
            size=f"{total:,}",
            limit=f"{max_bytes:,}",
        )
    source = ImportSource(name)
    for info in infos:
        path = PurePosixPath(info.filename.replace("\\", "/"))
        grows = info.file_size > MAX_RATIO * max(1, info.compress_size)
        if not path.parts:
            reason = say("it has no name")
        elif path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
            reason = say("its name leads outside the archive")
        elif stat.S_ISLNK(info.external_attr >> 16):
            reason = say("it is a link")
        elif info.flag_bits & 1:
            reason = say("it is protected by a password")
        elif info.file_size > MAX_UNCHECKED_BYTES and grows:
            reason = say("it would expand to more than %(count)s times its size", count=MAX_RATIO)
        else:
            opening = partial(archive.open, info)
            source.files.append(SourceFile(info.filename, info.file_size, opening))
            continue
        source.refused.append(ImportNote(info.filename or name, reason))
    return source


# Reading the items of a JSON array one by one, because the file may be larger than memory.

CHUNK_BYTES = 1024 * 1024
MAX_ITEM_CHARS = 256 * 1024 * 1024  # No real conversation is larger.

_NO_SPACE = re.compile(r"[^ \t\r\n]|\Z")
_decoder = json.JSONDecoder()


class DamagedJson(Rejected):
    """The rest of the file cannot be read; the message says why."""


def read_items(stream: IO[bytes], *, chunk: int = CHUNK_BYTES) -> Iterator[Any]:
    """Yield the items of a file that is a JSON array, or its single value.

    Bytes that are not UTF-8 become lone surrogates. Raise DamagedJson if the rest of the file
    cannot be read."""
    text = _JsonText(stream, chunk)
    if text.next_sign() != "[":
        if text.next_sign():
            yield text.read_value()
        return
    text.at += 1
    while (sign := text.next_sign()) != "]":
        if not sign:
            raise DamagedJson("the file ends before its list does")
        if sign == ",":
            text.at += 1
        else:
            yield text.read_value()


class _JsonText:
    """The text of a JSON file that is in memory. The text before ``at`` has been parsed."""

    def __init__(self, stream: IO[bytes], chunk: int) -> None:
        self._stream = stream
        self._chunk = chunk
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._text = ""
        self._has_ended = False
        self._sign_count = 0
        self.at = 0

    def _grow(self, size: int) -> None:
        data = self._stream.read(size)
        self._has_ended = not data
        text = self._decoder.decode(data, final=self._has_ended)
        self._text = self._text[self.at :] + text
        self.at = 0
        self._sign_count = count_signs(self._text)

    def next_sign(self) -> str:
        while True:
            self.at = _NO_SPACE.search(self._text, self.at).start()  # type: ignore[union-attr]
            if self.at < len(self._text) or self._has_ended:
                return self._text[self.at : self.at + 1]
            self._grow(self._chunk)

    def read_value(self) -> Any:
        while True:
            # The text in memory has too many signs, so count the values of the next item.
            if self._sign_count > MAX_ITEM_VALUES:
                values = count_values(self._text, limit=MAX_ITEM_VALUES, start=self.at)
                if values > MAX_ITEM_VALUES:
                    limit = f"{MAX_ITEM_VALUES:,}"
                    raise DamagedJson("it has more than %(limit)s values", limit=limit)
            try:
                value, self.at = _decoder.raw_decode(self._text, self.at)
                return value
            except RecursionError as error:
                raise DamagedJson("it is nested too deeply") from error
            except ValueError as error:
                chars_left = len(self._text) - self.at
                if self._has_ended or chars_left > MAX_ITEM_CHARS:
                    raise DamagedJson("not JSON (%(error)s)", error=str(error)) from error
                self._grow(max(self._chunk, chars_left))


# Reading SQLite files of other programs, including damaged ones.

MAGIC = b"SQLite format 3\x00"

# Errors when reading a damaged database. UnicodeDecodeError is raised if SQLite's message quotes
# damaged text.
SQLITE_DAMAGE = (sqlite3.Error, UnicodeDecodeError, OverflowError)


class NoDatabase(ValueError):
    """The file cannot be opened as a database; the text says why."""


@contextmanager
def open_unchanged(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for reading, without changing its files. Raise NoDatabase.

    The database is copied if a crash has left a log or a journal beside it, because SQLite would
    first have to apply the log or roll back the journal. It is also copied if its end is missing.
    A database that another process has open is read in place."""
    log, shared, journal = (path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))
    with path.open("rb") as file:
        header = file.read(100).ljust(100, b"\0")
    size = int.from_bytes(header[16:18])
    page_size = 65536 if size == 1 else size
    # SQLite refuses a file whose header counts more pages than the file has.
    is_cut = page_size * int.from_bytes(header[28:32]) > path.stat().st_size
    is_cut = is_cut and not _has_content(log)
    if is_cut or _has_content(journal) or (_has_content(log) and not shared.exists()):
        with TemporaryDirectory(prefix="loom-import-") as folder:
            copy = Path(folder) / "copy.db"
            for source, end in ((path, ""), (log, "-wal"), (journal, "-journal")):
                if source.exists():
                    shutil.copyfile(source, copy.with_name(copy.name + end))
            if is_cut:
                # Write the real number of pages into the copy's header (SQLite file format, 1.3.8).
                pages = copy.stat().st_size // max(512, page_size)
                with copy.open("r+b") as file:
                    file.seek(28)
                    file.write(max(1, pages).to_bytes(4))
                    file.seek(92)
                    file.write(header[24:28])
            with closing(_connect(copy, "mode=rw")) as connection:
                yield connection
        return
    is_wal = header[18:20] == b"\x02\x02"
    mode = "immutable=1" if is_wal and not _has_content(log) else "mode=ro"
    with closing(_connect(path, mode)) as connection:
        yield connection


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)
    except SQLITE_DAMAGE as error:
        raise NoDatabase(str(error)) from error
    connection.row_factory = sqlite3.Row
    # Bytes that are not UTF-8 become lone surrogates, which the archive keeps exactly.
    connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection
