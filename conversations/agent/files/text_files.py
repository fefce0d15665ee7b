"""A file's bytes as text, and back: encoding, byte order mark, newlines."""

import codecs
import os
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from conversations.domain.errors import Rejected
from conversations.domain.text import storable

from .confined import read_bytes

SNIFFED = 8192  # Bytes in which a NUL makes a file binary, as git has it

LF, CRLF = "\n", "\r\n"

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROLS = re.compile(rb"[\x01-\x06\x0e-\x1a\x1c-\x1f]")


class EncodingLacksCharacter(ValueError):
    """The file's encoding has no such character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """``text`` has the file's own newlines; ``newline`` is the one that it uses most. ``mark`` is
    its byte order mark, empty if it has none."""

    text: str
    encoding: str
    mark: bytes = b""

    @property
    def newline(self) -> str:
        return CRLF if 2 * self.text.count(CRLF) > self.text.count(LF) else LF

    @property
    def lines(self) -> list[str]:
        """Without their newlines. A newline at the end begins no line."""
        return split_lines(self.text)


def split_lines(text: str) -> list[str]:
    lines = text.split(LF)
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def read_text(data: bytes, *, is_cut: bool = False) -> TextFile | None:
    """None for what is no text. What is neither UTF-8 nor marked as UTF-16 is taken for Latin-1.
    ``is_cut``: the data may end inside of a character."""
    mark, encoding = next((m for m in _MARKS if data.startswith(m[0])), (b"", ""))
    body = data[len(mark) :]
    if not encoding.startswith("utf-16") and b"\0" in data[:SNIFFED]:
        return None
    if encoding:
        return _decoded(body, encoding, mark, is_cut=is_cut)
    found = _decoded(body, "utf-8", b"", is_cut=is_cut)
    if found is None and not _CONTROLS.search(data[:SNIFFED]):
        found = _decoded(body, "latin-1", b"", is_cut=is_cut)
    return found


def to_bytes(text: str, like: TextFile) -> bytes:
    """The text in the encoding of another. Raises NotEncodable."""
    try:
        return like.mark + text.encode(like.encoding)
    except UnicodeEncodeError as error:
        character = text[error.start : error.end][:1]
        raise EncodingLacksCharacter(f"{like.encoding} has no {character!a}") from error


def _decoded(data: bytes, encoding: str, mark: bytes, *, is_cut: bool) -> TextFile | None:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        text = decoder.decode(data, final=not is_cut)
    except UnicodeDecodeError:
        return None
    return TextFile(text=text, encoding=encoding, mark=mark)


# Reading a small text file of a workspace, wherever its links lead.


CACHED_FILES = 1000  # How many files are remembered; most of them by the head that an index needs

type _Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileText:
    """The beginning of a file. ``size`` is the whole file's in bytes, ``identity`` is the same for
    two names of one file."""

    text: str
    size: int
    is_cut: bool
    identity: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What tells one state of a file from another without reading it."""

    device: int
    inode: int
    mtime_ns: int
    ctime_ns: int
    size: int


def _stamp(found: os.stat_result) -> _Stamp:
    return _Stamp(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


class _Cache:
    """What was read last of each file, as long as its stamp is the same. That a path leads to the
    file with this stamp is checked by whoever asks; that the file may be read was found out when it
    was."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[_Key, tuple[_Stamp, FileText | None]] = OrderedDict()

    def get(self, key: _Key, stamp: _Stamp) -> FileText | None:
        """Raises KeyError for what is not known, or has changed."""
        with self._lock:
            known, text = self._known[key]
            if known != stamp:
                raise KeyError(key)
            self._known.move_to_end(key)
            return text

    def put(self, key: _Key, stamp: _Stamp, text: FileText | None) -> None:
        with self._lock:
            self._known[key] = stamp, text
            self._known.move_to_end(key)
            while len(self._known) > CACHED_FILES:
                self._known.popitem(last=False)


_cache = _Cache()


def read_file(root: Path, path: str, *, limit: int) -> FileText | None:
    """The first ``limit`` bytes of the text file ``path`` (relative to ``root``). None if there is
    none, if it leads out of ``root``, or if it is not to be read as text: a folder, a pipe, a
    device, binary, forbidden to this process."""
    try:
        stamp = _stamp(os.stat(os.path.join(root, path)))
        return _cache.get((str(root), path, limit), stamp)
    except KeyError:
        pass
    except (OSError, ValueError):
        return None
    try:
        found = _read(root, path, limit)
    except Rejected:
        return None
    _cache.put((str(root), path, limit), stamp, found)
    return found


def _read(root: Path, path: str, limit: int) -> FileText | None:
    content = read_bytes(root, path, limit=limit)
    text = _lossy_text(content.data)
    if text is None:
        return None
    return FileText(
        text=text,
        size=content.found.size,
        is_cut=content.is_cut,
        identity=content.found.identity,
    )


def _lossy_text(data: bytes) -> str | None:
    """UTF-8, whatever is damaged in it; None for what is no text. A character that the limit cuts
    in two is left out."""
    if b"\0" in data:
        return None
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    if data and data[-1] >= 0x80:
        text = text.rstrip("\ufffd")
    return storable(text.replace("\r\n", "\n").replace("\r", "\n"))
