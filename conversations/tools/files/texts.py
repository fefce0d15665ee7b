"""A text file of the workspace, whole, and what a result shows of one."""

from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from conversations.domain.errors import Rejected, TooLarge
from conversations.domain.text import storable
from conversations.folder.confined import FileStatus, content_digest, read_bytes
from conversations.folder.paths import shown
from conversations.folder.text_files import TextFile, read_text

LINE_CHARS = 2000
"""What is shown of one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeFile:
    """``text`` None: it is binary."""

    found: FileStatus
    data: bytes
    text: TextFile | None

    @property
    def digest(self) -> str:
        return content_digest(self.data)


def read_whole(root: Path, path: str) -> WholeFile:
    """Raises TooLarge beyond what the tools read of a file."""
    limit = settings.LOOM.max_read_bytes
    content = read_bytes(root, path, limit=limit)
    if content.is_cut:
        raise TooLarge(
            f"{shown(path)} has {size_text(content.found.size)}; this works up to"
            f" {size_text(limit)}. Use a command for it."
        )
    return WholeFile(found=content.found, data=content.data, text=read_text(content.data))


def check_writable(found: FileStatus) -> None:
    """A file that somebody made read-only is left alone, although replacing it would
    be possible."""
    if not found.mode & 0o222:
        raise Rejected(
            f"{shown(found.path)} is read-only (mode {found.mode:04o}); somebody wants it so."
        )


def numbered(lines: list[str], first: int) -> str:
    """Lines with their numbers, as ``cat -n`` has them."""
    return "\n".join(f"{number:>6}\t{cut(line)}" for number, line in enumerate(lines, first))


def cut(line: str, limit: int = LINE_CHARS) -> str:
    text = storable(line)
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… [{len(text) - limit:,} more characters in this line]"


def count_text(count: int, what: str) -> str:
    """ "1 line", "1,200 lines"."""
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"


def size_text(size: int) -> str:
    """ "840 bytes", "12.3 kB"."""
    if size < 1000:
        return count_text(size, "byte")
    amount, units = size / 1000, ["kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount /= 1000
        units.pop(0)
    return f"{amount:.1f} {units[0]}"
