"""Parts of results about files.

They are numbered lines, counts and sizes, notes on what a folder walk left out, and cursors.
"""

import os
from urllib.parse import quote_from_bytes, unquote_to_bytes

from conversations.agent.files.executed_files import is_git_name
from conversations.agent.files.paths import shown
from conversations.agent.files.walking import FolderWalk
from conversations.domain.messages import say_number
from conversations.domain.text import storable

MAX_LINE_CHARS = 2000


def numbered(lines: list[str], first: int) -> str:
    """Return the lines with their numbers, in the format of ``cat -n``."""
    return "\n".join(f"{number:>6}\t{cut(line)}" for number, line in enumerate(lines, first))


def cut(line: str, limit: int = MAX_LINE_CHARS) -> str:
    text = storable(line)
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… [{len(text) - limit:,} more characters in this line]"


def count_text(count: int, noun: str) -> str:
    """Return a count as in "1 line" and "1,200 lines"."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def lines_text(count: int) -> str:
    return say_number("%(count)s line", "%(count)s lines", count, count=f"{count:,}")


def size_text(size: int) -> str:
    """Return a size as in "840 bytes" and "12.3 kB"."""
    if size < 1000:
        return say_number("%(count)s byte", "%(count)s bytes", size, count=f"{size:,}")
    amount, units = size / 1000, ["kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount /= 1000
        units.pop(0)
    return f"{amount:.1f} {units[0]}"


MAX_NAMED_FOLDERS = 5


def describe_walk(walk: FolderWalk) -> list[str]:
    notes = list(filter(None, [describe_passed_over(walk.passed_over)]))
    if walk.is_late:
        notes.append("[The search took too long and is incomplete. Choose a folder further down.]")
    return notes


def describe_passed_over(paths: list[str]) -> str:
    """Name the folders that were not searched, except git's own."""
    paths = [path for path in paths if not is_git_name(path.rpartition("/")[2])]
    if not paths:
        return ""
    more = f" and {len(paths) - MAX_NAMED_FOLDERS} more" if len(paths) > MAX_NAMED_FOLDERS else ""
    named = ", ".join(f"{shown(path)}/" for path in paths[:MAX_NAMED_FOLDERS])
    return f"[Not searched because git ignores them or they are too large: {named}{more}.]"


def make_cursor(path: str) -> str:
    """Return any path as a text that a model can copy."""
    return quote_from_bytes(os.fsencode(path), safe="/ !#$&'()*+,;=@[]{}~^")


def read_cursor(cursor: str) -> str:
    return os.fsdecode(unquote_to_bytes(cursor))
