"""Where a path leads, inside a workspace's folder: checked before anything is opened.

A path comes from a model: relative to the workspace's folder, or absolute inside it. Links are
followed as long as they lead to something inside. What comes out is the place itself, without
links; :mod:`confined` opens it step by step, so that a link put there meanwhile ends in an error
and not elsewhere.
"""

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from django.conf import settings

from conversations.domain.errors import Rejected

NAME_BYTES, PATH_BYTES = 255, 4096  # Limits of Linux for one name and for a path
LEVELS = 200  # Of folders below the workspace's: each is opened and, if need be, made

SHOWN_CHARS = 300

# Control characters, what changes the direction of text, what has no width, and what
# no encoding holds: as they stand they would lie about the name.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


class OutsideFolder(Rejected):
    """The path leads out of the workspace's folder, or to what nobody may touch there."""

    code = "outside_folder"


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """``root`` is the workspace's real folder, ``parts`` the names below it."""

    root: str
    parts: tuple[str, ...]

    @property
    def real(self) -> str:
        return os.path.join(self.root, *self.parts)

    @property
    def path(self) -> str:
        """Relative to the workspace's folder, as everything else names it."""
        return "/".join(self.parts) or "."


def find_place(root: Path, path: str, *, follow_last: bool = True) -> ResolvedPath:
    """Where the path leads; it need not exist. With ``follow_last`` False a link at the end of the
    path is meant itself. Raises Rejected with a sentence."""
    _check(path)
    try:
        real_root = os.path.realpath(root, strict=True)
        real = _resolve(os.path.join(real_root, path), follow_last=follow_last)
    except (OSError, ValueError) as error:
        raise Rejected(f"{shown(path)} cannot be reached: {reason(error)}.") from error
    if real != real_root and not is_within(real, real_root):
        raise OutsideFolder(f"{shown(path)} lies outside of the workspace's folder.")
    below = os.path.relpath(real, real_root)
    place = ResolvedPath(real_root, () if below == "." else tuple(below.split(os.sep)))
    if len(place.parts) > LEVELS:
        raise Rejected(f"{shown(path)} is too deep: it has more than {LEVELS} folders.")
    if is_private(real, real_root):
        raise OutsideFolder(f"{shown(path)} belongs to this server and is not to be touched.")
    return place


def is_within(real: str, real_folder: str) -> bool:
    """Whether a resolved path lies below a resolved folder."""
    return real != real_folder and real.startswith(real_folder.rstrip(os.sep) + os.sep)


def is_private(real: str, real_root: str) -> bool:
    """Whether the place is part of the server's own data. A workspace may lie in the data folder,
    but never the other way round."""
    return any(
        (real == own or is_within(real, own)) and not is_within(real_root, own)
        for own in private_places()
    )


def private_places() -> tuple[str, ...]:
    """The data folder, and the database where it lies elsewhere."""
    database = str(settings.DATABASES["default"].get("NAME") or "")
    return _real_places(str(settings.LOOM.data_dir), database)


@lru_cache(maxsize=8)
def _real_places(data_dir: str, database: str) -> tuple[str, ...]:
    files = [database + suffix for suffix in ("", "-wal", "-shm", "-journal")]
    own = [data_dir, *(files if database.startswith(os.sep) else ())]
    return tuple(os.path.realpath(place) for place in own)


def shown(path: str) -> str:
    """A path in a sentence: on one line, with nothing in it that hides or turns text."""
    text = _HIDDEN.sub(lambda found: ascii(found[0])[1:-1], path)
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 1]}…"


def reason(error: OSError | ValueError) -> str:
    """Why the system refused, in its words and without a path of the server's."""
    told = error.strerror if isinstance(error, OSError) else str(error)
    return (told or "it cannot be opened").lower()


def _check(path: str) -> None:
    if not path:
        raise Rejected("The path is empty.")
    if "\0" in path:
        raise Rejected("A path cannot hold a NUL character.")
    if path.startswith("~"):
        raise Rejected(f"{shown(path)}: '~' is not expanded; give a path inside the workspace.")
    try:
        data = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise Rejected(f"{shown(path)} holds a character that no file name can have.") from error
    if len(data) > PATH_BYTES or any(len(name) > NAME_BYTES for name in data.split(b"/")):
        raise Rejected(f"{shown(path)} is too long: a name has at most {NAME_BYTES} bytes.")


def _resolve(path: str, *, follow_last: bool) -> str:
    if follow_last:
        return os.path.realpath(path)
    folder, name = os.path.split(path.rstrip(os.sep))
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(folder), name)
