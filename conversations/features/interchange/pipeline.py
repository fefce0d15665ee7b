"""Running a whole import: detecting the format of each file, reading it, storing its sessions."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from conversations.domain.messages import say
from conversations.domain.text import an_object

from .chatgpt import read_chatgpt
from .claude import read_claude
from .claude_code import read_claude_code
from .fields import UnusableLine, parse_object, read_lines
from .import_rows import ImportedRowSource
from .import_sessions import ImportCounts, Report, SessionImporter, import_file
from .import_targets import ImportTarget
from .lines import ImportHistory, ImportLine, ImportNote, Item
from .loom_sqlite import is_loom_database, read_loom_database
from .openwebui import read_openwebui
from .sources import (
    DAMAGE,
    MAGIC,
    DamagedJson,
    ImportSource,
    SourceFile,
    UnreadableSource,
    open_source,
    read_items,
)

# A file's format is detected from its content, never from its name.

LOOM, LOOM_SQLITE, CLAUDE_CODE = "loom", "loom-sqlite", "claude-code"
CHATGPT, CLAUDE, OPEN_WEBUI = "chatgpt", "claude", "openwebui"

SNIFFED_BYTES = 4096  # Enough to tell pictures and archives from text.
MAX_NULS = 8  # Text has no NUL bytes, but a line that was damaged by a crash may have some.

HEAD_BYTES = 1024 * 1024
HEAD_LINES = 50

_BOM = b"\xef\xbb\xbf"

# Types of lines in the interchange file, each with another key that such a line has.
_LOOM_KEYS = {"session": "type", "turn": "role", "event": "event_type"}

_CODE_KEYS = (
    {"parentUuid", "sessionId"},
    {"leafUuid", "summary"},
    {"messageId", "snapshot"},
    {"operation", "sessionId"},
)


def recognise(file: SourceFile) -> str:
    """Return the name of the file's format, or "" if it is unknown. Raise :data:`DAMAGE`."""
    with file.open() as stream:
        head = stream.read(SNIFFED_BYTES)
    if head.startswith(MAGIC):
        with file.on_disk() as path:
            return LOOM_SQLITE if is_loom_database(path) else ""
    if head.count(0) > MAX_NULS:
        return ""
    begins = head.removeprefix(_BOM).lstrip()[:1]
    if begins != b"[":
        with file.open() as stream:
            # Read whole lines: a picture in the first message can make its line very long.
            for _, raw in islice(read_lines(stream), HEAD_LINES):
                with suppress(UnusableLine):
                    value = parse_object(raw)
                    if any(keys <= value.keys() for keys in _CODE_KEYS):
                        return CLAUDE_CODE
                    if _LOOM_KEYS.get(str(value.get("type"))) in value:
                        return LOOM
    if begins in (b"[", b"{"):
        with suppress(DamagedJson), file.open() as stream:
            for item in map(an_object, islice(read_items(stream), 3)):
                if isinstance(item.get("mapping"), dict):
                    return CHATGPT
                if isinstance(item.get("chat_messages"), list):
                    return CLAUDE
                if isinstance(an_object(item.get("chat", item)).get("history"), dict):
                    return OPEN_WEBUI
    return ""


type Reader = Callable[[SourceFile, ImportSource, ImportHistory], Iterator[Item]]

AUTO = "auto"
MAX_NAMED_FILES = 5

READERS: dict[str, Reader] = {
    LOOM_SQLITE: read_loom_database,
    CLAUDE_CODE: read_claude_code,
    CHATGPT: read_chatgpt,
    CLAUDE: read_claude,
    OPEN_WEBUI: read_openwebui,
}
FORMATS = (LOOM, *READERS)


class ImportRun:
    """The import of one file, folder or archive. ``format`` is set to the detected format."""

    def __init__(
        self,
        target: ImportTarget,
        counts: ImportCounts,
        report: Report,
        progress: Callable[[], None] = lambda: None,
        format: str = AUTO,
    ) -> None:
        self.target = target
        self.counts = counts
        self.report = report
        self.progress = progress
        self.format = format
        self._importer = SessionImporter(target=target, counts=counts, report=report)

    def run(self, path: Path, *, name: str, max_bytes: int = 0) -> None:
        """Import a file, a folder or an archive. Raise UnreadableSource and OSError."""
        with open_source(path, name=name, max_bytes=max_bytes) as source:
            recognised_files = self._choose(source)
            if not recognised_files and not source.refused:
                raise UnreadableSource(
                    "The format is unknown: it is not an interchange file, as export_sessions "
                    "writes, a database of an earlier Loom version, a Claude Code session, or an "
                    "export of ChatGPT, Claude or Open WebUI."
                )
            with self._importer:
                for file, format in recognised_files:
                    source.used.add(file.name)
                    if format == LOOM:
                        with file.open() as stream:
                            import_file(
                                stream,
                                target=self.target,
                                counts=self.counts,
                                report=self.report,
                                progress=self.progress,
                            )
                        continue
                    for number, item in enumerate(READERS[format](file, source, self._importer), 1):
                        self._import_item(item, number)
                        self.progress()
            for item in source.refused:
                self._import_item(item, 0)
            unread = [file.name for file in source.files if file.name not in source.used]
            if unread:
                names = ", ".join(unread[:MAX_NAMED_FILES])
                unnamed_count = len(unread) - MAX_NAMED_FILES
                if unnamed_count > 0:
                    text = say(
                        "no conversations in %(files)s and %(count)s more",
                        files=names,
                        count=unnamed_count,
                    )
                else:
                    text = say("no conversations in %(files)s", files=names)
                self.report(ImportedRowSource(0, source.name), text)
            if not recognised_files:
                raise UnreadableSource("Nothing in the file could be read.")

    def _choose(self, source: ImportSource) -> list[tuple[SourceFile, str]]:
        if self.format != AUTO and len(source.files) == 1:
            [file] = source.files
            with suppress(*DAMAGE):  # the reader reports the damage
                recognised = recognise(file)
                if recognised and recognised != self.format:
                    raise UnreadableSource(
                        "The format was given as %(given)s, but the file is %(found)s.",
                        given=self.format,
                        found=recognised,
                    )
            return [(file, self.format)]
        only_format = None if self.format == AUTO else self.format
        recognised_files = []
        for file in source.files:
            try:
                format = recognise(file)
            except DAMAGE as error:
                reason = say("it cannot be read: %(error)s", error=str(error))
                source.refused.append(ImportNote(file.name, reason))
                continue
            if format and only_format in (None, format):
                recognised_files.append((file, format))
        if (
            not recognised_files
            and len(source.files) == 1
            and only_format is None
            and source.files[0].path
        ):
            # It could be an interchange file whose first lines are all unreadable.
            with source.files[0].open() as stream:
                text = stream.read(HEAD_BYTES).removeprefix(_BOM).lstrip()
            is_text = text[:1] in (b"", b"{") and b"\x00" not in text
            return [(source.files[0], LOOM)] if is_text else []
        formats = {format for _, format in recognised_files}
        self.format = formats.pop() if len(formats) == 1 else self.format
        return recognised_files

    def _import_item(self, item: Item, number: int) -> None:
        line = ImportedRowSource(number, item.place)
        if isinstance(item, ImportLine):
            self._importer.import_value(line, item.value)
        elif item.is_skipped:
            self._importer.skip(line, item.text)
        else:
            self._importer.warn(line, item.text)
