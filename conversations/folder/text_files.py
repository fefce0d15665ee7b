"""A file's bytes as text, and back: encoding, byte order mark, newlines."""

import codecs
import re
from dataclasses import dataclass

SNIFFED = 8192
"""Bytes in which a NUL makes a file binary, as git has it."""

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
    """``text`` has the file's own newlines; ``newline`` is the one that it uses most.
    ``mark`` is its byte order mark, empty if it has none."""

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
    """None for what is no text. What is neither UTF-8 nor marked as UTF-16 is taken for
    Latin-1. ``is_cut``: the data may end inside of a character."""
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
