"""SQLite files of others: opened for reading, whatever became of them.

The file is never written to, nor is anything beside it.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

MAGIC = b"SQLite format 3\x00"

DAMAGE = (sqlite3.Error, UnicodeDecodeError, OverflowError)
"""What reading a damaged file raises; the second where a message quotes it."""

_WAL_VERSION = 2


class NoDatabase(ValueError):
    """The file cannot be opened as a database; the text says why."""


@contextmanager
def open_unchanged(path: Path) -> Iterator[sqlite3.Connection]:
    """The database for reading. With what a crash left beside it (a log or a journal) it is
    read as a copy, since SQLite would have to put that in order first; and so is one whose
    end is missing. While somebody has it open, it is read as it stands. Raises
    NoDatabase."""
    log, shared, journal = (path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))
    is_cut = _pages_missing(path) and not _has_content(log)
    if is_cut or _has_content(journal) or (_has_content(log) and not shared.exists()):
        with TemporaryDirectory(prefix="loom-import-") as folder:
            copy = Path(folder) / "copy.db"
            for source, end in ((path, ""), (log, "-wal"), (journal, "-journal")):
                if source.exists():
                    shutil.copyfile(source, copy.with_name(copy.name + end))
            if is_cut:
                _claim_what_is_there(copy)
            with closing(_connect(copy, "mode=rw")) as connection:
                yield connection
        return
    alone = _is_in_wal_mode(path) and not _has_content(log)
    with closing(_connect(path, "immutable=1" if alone else "mode=ro")) as connection:
        yield connection


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _pages_missing(path: Path) -> bool:
    """Whether the header tells of more pages than there are, which SQLite refuses."""
    size, told = _sizes(path)
    return told > size


def _sizes(path: Path) -> tuple[int, int]:
    """The bytes that the file has and those of which its header tells."""
    with path.open("rb") as file:
        header = file.read(100).ljust(100, b"\0")
    return path.stat().st_size, _page_size(header) * int.from_bytes(header[28:32])


def _page_size(header: bytes) -> int:
    size = int.from_bytes(header[16:18])
    return 65536 if size == 1 else size


def _claim_what_is_there(path: Path) -> None:
    """Let the header of a copy tell of the pages that it has (the file format, 1.3.8), so
    that those can be read."""
    with path.open("r+b") as file:
        header = file.read(100).ljust(100, b"\0")
        pages = path.stat().st_size // max(512, _page_size(header))
        file.seek(28)
        file.write(max(1, pages).to_bytes(4))
        file.seek(92)
        file.write(header[24:28])


def _is_in_wal_mode(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(20)[18:20] == bytes([_WAL_VERSION, _WAL_VERSION])


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)
    except DAMAGE as error:
        raise NoDatabase(str(error)) from error
    connection.row_factory = sqlite3.Row
    connection.text_factory = _decode
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _decode(data: bytes) -> str:
    """What is no UTF-8 becomes lone surrogates, which the archive keeps exactly."""
    return data.decode("utf-8", "surrogateescape")
