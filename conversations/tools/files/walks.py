"""What a result says of a walk through folders: what was left out, and where to go on."""

import os
from urllib.parse import quote_from_bytes, unquote_to_bytes

from conversations.domain.git_parts import is_git_name
from conversations.folder.paths import shown
from conversations.folder.walking import FolderWalk

NAMED = 5


def describe_walk(walk: FolderWalk) -> list[str]:
    notes = []
    over = describe_passed_over(walk.passed_over)
    if over:
        notes.append(over)
    if walk.is_late:
        notes.append("[It took too long, so this is not all. Choose a folder further down.]")
    return notes


def describe_passed_over(paths: list[str]) -> str:
    """Folders that were not gone into; git's own go without saying."""
    paths = [path for path in paths if not is_git_name(path.rpartition("/")[2])]
    if not paths:
        return ""
    more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    named = ", ".join(f"{shown(path)}/" for path in paths[:NAMED])
    return f"[Not looked into, as ignored by git or too large by nature: {named}{more}.]"


def make_cursor(path: str) -> str:
    """A path, whatever is in it, as a text that a model can copy."""
    return quote_from_bytes(os.fsencode(path), safe="/ !#$&'()*+,;=@[]{}~^")


def read_cursor(cursor: str) -> str:
    return os.fsdecode(unquote_to_bytes(cursor))
