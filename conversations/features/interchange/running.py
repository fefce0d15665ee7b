"""An import from beginning to end: the files, their readers, the archive."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

from conversations.domain.text import load_json

from .chatgpt import read_chatgpt
from .claude import read_claude
from .claude_code import read_claude_code
from .import_rows import ImportedRowSource
from .import_sessions import ImportCounts, Report, SessionImporter, import_file
from .import_targets import ImportTarget, words_of_line
from .loom_sqlite import is_loom_database, read_loom_database
from .making import Archive, ImportLine, Item, Note, Reached, Skipped
from .opening import (
    DAMAGE,
    MAGIC,
    ArchiveLimits,
    DamagedJson,
    ImportSource,
    NotReadable,
    SourceFile,
    open_source,
    read_items,
)
from .openwebui import read_openwebui

# What a file is, by its content: never by its name.


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


type Reader = Callable[[SourceFile, ImportSource, Archive], Iterator[Item]]

AUTO = "auto"
NAMED_FILES = 5


READERS: dict[str, Reader] = {
    LOOM_SQLITE: read_loom_database,
    CLAUDE_CODE: read_claude_code,
    CHATGPT: read_chatgpt,
    CLAUDE: read_claude,
    OPEN_WEBUI: read_openwebui,
}
FORMATS = (LOOM, *READERS)


@dataclass(slots=True)
class Running:
    """An import that goes on: where its sessions go, what became of them, and whom to tell.
    ``format`` becomes what was found."""

    target: ImportTarget
    counts: ImportCounts
    report: Report
    progress: Callable[[], None] = lambda: None
    format: str = AUTO
    _importer: SessionImporter = field(init=False)

    def __post_init__(self) -> None:
        self._importer = SessionImporter(target=self.target, counts=self.counts, report=self.report)

    def run(self, path: Path, *, name: str, limits: ArchiveLimits | None = None) -> None:
        """Import a file, a folder or an archive. Raises NotReadable and OSError."""
        with open_source(path, name=name, limits=limits or ArchiveLimits()) as source:
            found = self._choose(source)
            if not found and not source.refused:
                raise NotReadable(
                    "Nothing in it is known here: no Loom database or interchange file, no"
                    " Claude Code session, no export of ChatGPT, Claude or Open WebUI."
                )
            for file, format in found:
                source.used.add(file.name)
                self._import(file, format, source)
            self._finish(source, [f.name for f in source.files if f.name not in source.used])
            if not found:
                raise NotReadable("Nothing of it could be read.")

    def _choose(self, source: ImportSource) -> list[tuple[SourceFile, str]]:
        """Which file is read as what."""
        if self.format != AUTO and len(source.files) == 1:
            self._check_format(source.files[0])
            return [(source.files[0], self.format)]
        wanted = None if self.format == AUTO else self.format
        found = []
        for file in source.files:
            try:
                format = recognise(file)
            except DAMAGE as error:
                source.refused.append(Skipped(file.name, f"it cannot be read: {error}"))
                continue
            if format and wanted in (None, format):
                found.append((file, format))
        if not found and len(source.files) == 1 and wanted is None and source.files[0].path:
            return [(source.files[0], LOOM)] if may_be_lines(source.files[0]) else []
        formats = {format for _, format in found}
        self.format = formats.pop() if len(formats) == 1 else self.format
        return found

    def _check_format(self, file: SourceFile) -> None:
        """A file that is plainly something else is not read as what was named. Raises
        NotReadable."""
        with suppress(*DAMAGE):  # whoever reads it says so
            found = recognise(file)
            if found and found != self.format:
                raise NotReadable(f"It was to be read as {self.format}, but it is {found}.")

    def _import(self, file: SourceFile, format: str, source: ImportSource) -> None:
        if format == LOOM:
            with file.open() as stream:
                import_file(
                    stream,
                    target=self.target,
                    counts=self.counts,
                    report=self.report,
                    progress=self.progress,
                )
            return
        importer = self._importer
        archive = Archive(self._reached, importer.resolve, importer.told, words_of_line)
        items = READERS[format](file, source, archive)
        for number, item in enumerate(items, 1):
            self._hand_over(item, number)
            self.progress()

    def _reached(self, uuid: UUID) -> Reached | None:
        found = self._importer.reached(uuid)
        return found and Reached(*found)

    def _finish(self, source: ImportSource, unread: list[str]) -> None:
        """Say what was left, and connect sessions with those that they came from."""
        self._importer.close()
        for item in source.refused:
            self._hand_over(item, 0)
        if unread:
            more = f" and {len(unread) - NAMED_FILES} more" if len(unread) > NAMED_FILES else ""
            named = ", ".join(unread[:NAMED_FILES])
            self.report(ImportedRowSource(0, source.name), f"no conversations in {named}{more}")

    def _hand_over(self, item: Item, number: int) -> None:
        line = ImportedRowSource(number, item.place)
        match item:
            case ImportLine(value=value):
                self._importer.take(line, value)
            case Skipped(reason=reason):
                self._importer.skip(line, reason)
            case Note(text=text):
                self._importer.note(line, text)
