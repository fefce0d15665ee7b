"""What a file is, by its content: never by its name.

The beginning says it: a database by its first bytes and its tables, JSON by the keys of the
first item of its list, lines of JSON by the keys of the first ones.
"""

from itertools import islice
from typing import Any

from conversations.domain.text import load_json

from .loom_sqlite import is_loom_database
from .opening import MAGIC, DamagedJson, SourceFile, read_items

LOOM, LOOM_SQLITE, CLAUDE_CODE = "loom", "loom-sqlite", "claude-code"
CHATGPT, CLAUDE, OPEN_WEBUI = "chatgpt", "claude", "openwebui"

BEGINNING = 4096
"""Bytes in which pictures and archives show that they are no text."""

MAX_NULS = 8
"""Text has none; a line that a crash has damaged may have some."""

HEAD = 1024 * 1024
HEAD_LINES = 50

_LOOM_KEYS = {"session": "", "turn": "role", "event": "event_type"}
"""Types of lines with a key that they have as well."""

_CODE_KEYS = ({"parentUuid", "sessionId"}, {"leafUuid", "summary"})


def recognise(file: SourceFile) -> str:
    """The name of the file's format, empty for one that nobody reads here. Raises OSError
    and zipfile.BadZipFile."""
    with file.open() as stream:
        head = stream.read(BEGINNING)
        if not head.startswith(MAGIC) and head.count(0) > MAX_NULS:
            return ""
        head += stream.read(HEAD)
    if head.startswith(MAGIC):
        with file.on_disk() as path:
            return LOOM_SQLITE if is_loom_database(path) else ""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"[":
        return _of_items(file)
    return _of_lines(text) or (_of_items(file) if text[:1] == b"{" else "")


def may_be_lines(file: SourceFile) -> bool:
    """Whether it could be an interchange file of which no line at its beginning can be
    read: it is empty, or begins like one."""
    with file.open() as stream:
        text = stream.read(HEAD).removeprefix(b"\xef\xbb\xbf").lstrip()
    return text[:1] in (b"", b"{") and b"\x00" not in text


def _of_lines(head: bytes) -> str:
    for raw in head.splitlines()[:HEAD_LINES]:
        try:
            value = load_json(raw.decode("utf-8", "surrogateescape"))
        except ValueError:
            continue
        if isinstance(value, dict) and (found := _of_line(value)):
            return found
    return ""


def _of_line(value: dict[str, Any]) -> str:
    if any(keys <= value.keys() for keys in _CODE_KEYS):
        return CLAUDE_CODE
    key = _LOOM_KEYS.get(str(value.get("type")))
    return LOOM if key is not None and (not key or key in value) else ""


def _of_items(file: SourceFile) -> str:
    try:
        with file.open() as stream:
            for item in islice(read_items(stream), 3):
                if found := _of_item(item):
                    return found
    except DamagedJson:
        pass
    return ""


def _of_item(item: Any) -> str:
    if not isinstance(item, dict):
        return ""
    if isinstance(item.get("mapping"), dict):
        return CHATGPT
    if isinstance(item.get("chat_messages"), list):
        return CLAUDE
    chat = item.get("chat", item)
    if isinstance(chat, dict) and isinstance(chat.get("history"), dict):
        return OPEN_WEBUI
    return ""
