"""A JSON file that is larger than memory: the items of its array, one after another.

The parser of the standard library is tried on what is read so far, which at least doubles
with each try that fails, so every byte is looked at about twice.
"""

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

CHUNK = 1024 * 1024
MAX_ITEM_CHARS = 256 * 1024 * 1024
"""A single conversation of this size is no conversation."""

_SPACE = " \t\r\n"
_decoder = json.JSONDecoder()


class DamagedJson(ValueError):
    """From here on the file cannot be read; the text says why."""


def read_items(stream: BinaryIO, *, chunk: int = CHUNK) -> Iterator[Any]:
    """The items of the array that the file is, or the one object. Bytes that are no UTF-8
    become lone surrogates. Raises DamagedJson where it cannot go on."""
    text = _Text(stream, chunk)
    if text.next_sign() != "[":
        if text.next_sign():
            yield text.read_value()
        return
    text.take()
    while (sign := text.next_sign()) != "]":
        if not sign:
            raise DamagedJson("the file ends before its list does")
        if sign == ",":
            text.take()
            continue
        yield text.read_value()


class _Text:
    """What is read of the file and not used up yet."""

    def __init__(self, stream: BinaryIO, chunk: int) -> None:
        self._stream = stream
        self._chunk = chunk
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._text = ""
        self._at = 0
        self._has_ended = False
        self._grow(chunk)

    def _grow(self, size: int) -> None:
        data = self._stream.read(size)
        self._has_ended = not data
        text = self._decoder.decode(data, final=self._has_ended)
        self._text = self._text[self._at :] + text
        self._at = 0

    def take(self) -> None:
        self._at += 1

    def next_sign(self) -> str:
        """The next character that is no space, empty at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if self._has_ended:
                return ""
            self._grow(self._chunk)

    def read_value(self) -> Any:
        while True:
            try:
                value, self._at = _decoder.raw_decode(self._text, self._at)
            except RecursionError as error:
                raise DamagedJson("it is nested too deeply") from error
            except ValueError as error:
                left = len(self._text) - self._at
                if self._has_ended or left > MAX_ITEM_CHARS:
                    raise DamagedJson(f"not JSON ({error})") from error
                self._grow(max(self._chunk, left))
                continue
            return value
