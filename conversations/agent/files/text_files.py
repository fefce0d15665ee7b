"""Converting a file's bytes to text and back: encoding, byte order mark, newlines."""

import codecs
import os
import re
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from conversations.domain.errors import Rejected
from conversations.domain.messages import say
from conversations.domain.text import storable

from .confined import read_bytes
from .paths import stamp_of

SNIFFED_BYTES = 8192  # A file with a NUL among them is binary; git has the same rule

LF, CRLF = "\n", "\r\n"

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_ENCODING_NAMES = {
    "utf-8": "UTF-8",
    "utf-16-le": "UTF-16",
    "utf-16-be": "UTF-16",
    "latin-1": "Latin-1",
}
_CONTROLS = re.compile(rb"[\x01-\x06\x0e-\x1a\x1c-\x1f]")


class EncodingLacksCharacter(ValueError):
    """The file's encoding has no such character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """A text and its encoding.

    ``text`` has the file's own newlines, and ``newline`` is the more frequent kind. ``mark`` is the
    byte order mark, or empty."""

    text: str
    encoding: str
    mark: bytes = b""

    @property
    def newline(self) -> str:
        return CRLF if 2 * self.text.count(CRLF) > self.text.count(LF) else LF

    @property
    def encoding_name(self) -> str:
        """The encoding's name for people; empty if the file has no text."""
        if not self.text:
            return ""
        if self.mark == codecs.BOM_UTF8:
            return say("UTF-8 with a byte order mark")
        return _ENCODING_NAMES[self.encoding]

    @property
    def newline_name(self) -> str:
        """The newline's name for people; empty if the file has no newline."""
        return {LF: "LF", CRLF: "CRLF"}[self.newline] if LF in self.text else ""

    @property
    def lines(self) -> list[str]:
        """The lines without their newlines. A newline at the end begins no further line."""
        return split_lines(self.text)


def split_lines(text: str) -> list[str]:
    lines = text.split(LF)
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def read_text(data: bytes, *, is_cut: bool = False) -> TextFile | None:
    """Return the text, or None if the data is not text.

    Data that is neither UTF-8 nor marked as UTF-16 is read as Latin-1. With ``is_cut`` the data may
    end inside a character."""
    mark, encoding = next((m for m in _MARKS if data.startswith(m[0])), (b"", ""))
    if not encoding.startswith("utf-16") and b"\0" in data[:SNIFFED_BYTES]:
        return None
    encodings = [encoding] if encoding else ["utf-8"]
    if not encoding and not _CONTROLS.search(data[:SNIFFED_BYTES]):
        encodings.append("latin-1")
    for name in encodings:
        with suppress(UnicodeDecodeError):
            decoder = codecs.getincrementaldecoder(name)()
            text = decoder.decode(data[len(mark) :], final=not is_cut)
            return TextFile(text=text, encoding=name, mark=mark)
    return None


def to_bytes(text: str, like: TextFile) -> bytes:
    """Return the text in the encoding of ``like``. Raise EncodingLacksCharacter."""
    try:
        return like.mark + text.encode(like.encoding)
    except UnicodeEncodeError as error:
        character = text[error.start : error.end][:1]
        raise EncodingLacksCharacter(f"{like.encoding} cannot represent {character!a}") from error


# Reading a small text file of a workspace, wherever its links lead

MAX_CACHED_FILES = 1000  # Mostly the first bytes of skill files, for an index


@dataclass(frozen=True, slots=True, kw_only=True)
class FileText:
    """The beginning of a file.

    ``size`` is the size of the whole file in bytes. ``identity`` is the same for two names of one
    file."""

    text: str
    size: int
    is_cut: bool
    identity: tuple[int, int]


class LRUCache[K, V]:
    """A thread-safe mapping that drops its least recently used value when it is full."""

    def __init__(self, *, size: int) -> None:
        self._size = size
        self._lock = Lock()
        self._values: OrderedDict[K, V] = OrderedDict()

    def find(self, key: K) -> V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def store(self, key: K, value: V) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._size:
                self._values.popitem(last=False)


# The last text read, by root, path and limit; valid as long as the file's stamp is the same. The
# caller checks that the path leads to the file with this stamp. The permission to read was checked
# when the file was read.
_cache = LRUCache[tuple[str, str, int], tuple[tuple[int, ...], FileText | None]](
    size=MAX_CACHED_FILES
)


def read_file(root: Path, path: str, *, limit: int) -> FileText | None:
    """Return the first ``limit`` bytes of the text file ``path`` (relative to ``root``).

    Return None if the file is missing, if the path leads out of ``root``, or if it cannot be read
    as text: a folder, a pipe, a device, a binary file, or a file that this process may not read."""
    try:
        stamp = stamp_of(os.stat(os.path.join(root, path)))
    except (OSError, ValueError):
        return None
    key = (str(root), path, limit)
    cached = _cache.find(key)
    if cached is not None and cached[0] == stamp:
        return cached[1]
    try:
        content = read_bytes(root, path, limit=limit)
        data = content.data
        file_text = None
        if b"\0" not in data:
            # Decode as UTF-8 and replace invalid bytes. A character that the limit cuts in two is
            # left out.
            text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
            if data and data[-1] >= 0x80:
                text = text.rstrip("\ufffd")
            file_text = FileText(
                text=storable(text.replace("\r\n", "\n").replace("\r", "\n")),
                size=content.found.size,
                is_cut=content.is_cut,
                identity=content.found.identity,
            )
    except Rejected:
        return None
    _cache.store(key, (stamp, file_text))
    return file_text
