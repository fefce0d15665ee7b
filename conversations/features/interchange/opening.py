"""The files of what was given: one file, a folder, or a ZIP archive.

An archive is read where it lies: nothing is unpacked but a database, which needs a file,
and that into a folder which goes again. What would make an archive grow without bounds is
refused before it is read: too many files, too much in all, or much more than its size.
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
from collections.abc import Iterator
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

from .making import MAX_ITEM_VALUES, ImportNote, Item

MAX_FILES = 50_000

# Of what a file grows to over its size in the archive; text shrinks to a fifth, a tenth.
MAX_RATIO = 200
MAX_UNCHECKED_BYTES = 10 * 1024 * 1024  # A smaller file may have any ratio.

# Of an archive's list of its files, which is read as a whole and takes many times its size
# of memory.
MAX_DIRECTORY_BYTES = 16 * 1024 * 1024

# What reading a file of a damaged archive raises, or of one packed in a way of its own.
DAMAGE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError)


class UnreadableSource(Rejected):
    """What was given cannot be read at all; the message says why."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file by its name in what was given. ``path`` where it lies on the disk."""

    name: str
    size: int
    path: Path | None = None
    archive: zipfile.ZipFile | None = None
    info: zipfile.ZipInfo | None = None

    def open(self) -> IO[bytes]:
        """Its bytes. Raises what :data:`DAMAGE` names, as reading them does."""
        if self.path is not None:
            return self.path.open("rb")
        assert self.archive is not None
        assert self.info is not None
        return self.archive.open(self.info)

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
    """All files of an import, those refused, and the names of those that a conversation has."""

    name: str
    files: list[SourceFile] = field(default_factory=list)
    refused: list[Item] = field(default_factory=list)
    used: set[str] = field(default_factory=set)


@contextmanager
def open_source(path: Path, *, name: str, max_bytes: int = 0) -> Iterator[ImportSource]:
    """The files of a file, a folder or a ZIP archive, whose files may have ``max_bytes``
    together (0: any number). Raises UnreadableSource and OSError."""
    if path.is_dir():
        source = ImportSource(name)
        for folder, folders, files in path.walk():
            folders.sort()
            for found in (folder / file for file in sorted(files)):
                if not stat.S_ISREG(found.lstat().st_mode):
                    continue
                shown = found.relative_to(path).as_posix()
                source.files.append(SourceFile(shown, found.stat().st_size, path=found))
                if len(source.files) > MAX_FILES:
                    raise UnreadableSource(
                        "The folder has more than %(count)s files.", count=f"{MAX_FILES:,}"
                    )
        yield source
        return
    with path.open("rb") as file:
        # Any file that ends like an archive is taken for one; a database may.
        is_database = file.read(6) == b"SQLite"
    if is_database or not zipfile.is_zipfile(path):
        yield ImportSource(name, [SourceFile(name, path.stat().st_size, path=path)])
        return
    try:
        with _ArchiveFile(path) as packed, zipfile.ZipFile(packed) as archive:
            packed.most = None
            yield _list_archive(archive, name, max_bytes)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise UnreadableSource(
            "The archive is damaged or protected: %(error)s.", error=str(error)
        ) from error


class _ArchiveFile(io.FileIO):
    """``most``: bytes that may be read at once, until the archive is open."""

    most: int | None = MAX_DIRECTORY_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        if self.most is not None and size is not None and size > self.most:
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
            file = SourceFile(info.filename, info.file_size, archive=archive, info=info)
            source.files.append(file)
            continue
        source.refused.append(ImportNote(info.filename or name, reason))
    return source


# A JSON file that is larger than memory: the items of its array, one after another.

CHUNK_BYTES = 1024 * 1024
MAX_ITEM_CHARS = 256 * 1024 * 1024  # A single conversation of this size is no conversation.

_NO_SPACE = re.compile(r"[^ \t\r\n]|\Z")
_decoder = json.JSONDecoder()


class DamagedJson(Rejected):
    """From here on the file cannot be read; the message says why."""


def read_items(stream: IO[bytes], *, chunk: int = CHUNK_BYTES) -> Iterator[Any]:
    """The items of the array that the file is, or the one object. Bytes that are no UTF-8
    become lone surrogates. Raises DamagedJson where it cannot go on."""
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
    """What is read of the file, and ``at``: how far it is used up."""

    def __init__(self, stream: IO[bytes], chunk: int) -> None:
        self._stream = stream
        self._chunk = chunk
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._text = ""
        self._has_ended = False
        self._signs = 0
        self.at = 0

    def _grow(self, size: int) -> None:
        data = self._stream.read(size)
        self._has_ended = not data
        text = self._decoder.decode(data, final=self._has_ended)
        self._text, self.at = self._text[self.at :] + text, 0
        self._signs = count_signs(self._text)

    def next_sign(self) -> str:
        while True:
            self.at = _NO_SPACE.search(self._text, self.at).start()  # type: ignore[union-attr]
            if self.at < len(self._text) or self._has_ended:
                return self._text[self.at : self.at + 1]
            self._grow(self._chunk)

    def read_value(self) -> Any:
        while True:
            # All items that have been read have that many, the next one perhaps.
            if self._signs > MAX_ITEM_VALUES:
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
                left = len(self._text) - self.at
                if self._has_ended or left > MAX_ITEM_CHARS:
                    raise DamagedJson("not JSON (%(error)s)", error=str(error)) from error
                self._grow(max(self._chunk, left))


# SQLite files of others: opened for reading, whatever became of them.

MAGIC = b"SQLite format 3\x00"

# What reading a damaged file raises; the second where a message quotes it.
SQLITE_DAMAGE = (sqlite3.Error, UnicodeDecodeError, OverflowError)


class NoDatabase(ValueError):
    """The file cannot be opened as a database; the text says why."""


@contextmanager
def open_unchanged(path: Path) -> Iterator[sqlite3.Connection]:
    """The database for reading. With what a crash left beside it (a log or a journal) it is
    read as a copy, since SQLite would have to put that in order first; and so is one whose
    end is missing. While somebody has it open, it is read as it stands. Raises
    NoDatabase."""
    log, shared, journal = (path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))
    with path.open("rb") as file:
        header = file.read(100).ljust(100, b"\0")
    size = int.from_bytes(header[16:18])
    page_size = 65536 if size == 1 else size
    # SQLite refuses a file whose header tells of more pages than there are.
    is_cut = page_size * int.from_bytes(header[28:32]) > path.stat().st_size
    is_cut = is_cut and not _has_content(log)
    if is_cut or _has_content(journal) or (_has_content(log) and not shared.exists()):
        with TemporaryDirectory(prefix="loom-import-") as folder:
            copy = Path(folder) / "copy.db"
            for source, end in ((path, ""), (log, "-wal"), (journal, "-journal")):
                if source.exists():
                    shutil.copyfile(source, copy.with_name(copy.name + end))
            if is_cut:
                # The copy's header tells of the pages that it has (the file format, 1.3.8).
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
    # What is no UTF-8 becomes lone surrogates, which the archive keeps exactly.
    connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection
