"""Disarming what git would run or obey and what came into being while a command ran.

What was there before is read-only for commands. What was not (a new repository, a link in
the place of one, a part that git had not had) is looked at as soon as the command has
ended: harmless configuration stays, all else is put aside under a name that git does not
know, or made a comment, and what stood there before is put back. Nothing is lost by it.
"""

import logging
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from conversations.archive.blobs import has_blob, read_blob
from conversations.domain.errors import LoomError
from conversations.domain.file_changes import FileState
from conversations.domain.git_parts import (
    COMMON,
    CONFIGS,
    DISARMED,
    MAX_CONFIG_BYTES,
    STEPS,
    STRATEGIES,
    clean_config,
    clean_steps,
    names_own_strategy,
)
from conversations.folder.paths import shown
from conversations.sandbox.repositories import (
    LINK,
    Part,
    Repositories,
    find_repositories,
)

from .disk import (
    NoFolder,
    change_mode,
    folder_of,
    put_file,
    put_link,
    read_content,
)

logger = logging.getLogger(__name__)

MAX_NAMED = 10
"""Parts that a note names."""

ATTEMPTS = 1000
"""Names that are tried for a part that is put aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disarmed:
    """The parts that were disarmed, by path, and those that could not be. ``is_whole``
    False: part of the folder was not looked at, there is too much."""

    paths: Sequence[str] = ()
    failed: Sequence[str] = ()
    is_whole: bool = True

    @property
    def note(self) -> str:
        """For the model and the people; empty where there was nothing to do."""
        told = []
        if self.paths:
            told.append(
                f"Git would run or obey {_listed(self.paths)} outside of the sandbox, so that was"
                f" disarmed: put aside with the ending {DISARMED}, or made a comment."
            )
        if self.failed:
            told.append(
                f"Do not use git in this folder before somebody has looked at"
                f" {_listed(self.failed)}: git would run or obey it, and it could not be disarmed."
            )
        if not self.is_whole:
            told.append(
                "The folder holds too many files to be looked through: whether git would run"
                " something new in its deepest folders is not known."
            )
        return " ".join(told)


def disarm(
    root: Path,
    before: Mapping[str, Part],
    *,
    kept: Mapping[str, FileState] | None = None,
    was_held: Callable[[str], bool] = lambda _: False,
) -> Disarmed:
    """Look at everything that git obeys in the folder; ``before`` is what it obeyed earlier,
    ``kept`` the states of files then, for what is put back. ``was_held``: the part at the path
    was read-only meanwhile, so that what changed in it is somebody else's.

    A part with the content of one of the same kind that was there before stays: folders
    with a repository may be moved and copied."""
    now = find_repositories(root, known=before)
    known = {(part.kind, part.state) for part in before.values()}
    work = _Disarming(root=root, now=now, before=before, kept=kept or {})
    for path, part in now.parts.items():
        if before.get(path) == part or not _is_new(part, known) or was_held(path):
            continue
        try:
            work.judge(path, part)
        except (OSError, LoomError):
            logger.warning("git_part_not_disarmed", exc_info=True)
            work.failed.append(path)
    return Disarmed(paths=sorted(work.disarmed), failed=sorted(work.failed), is_whole=now.is_whole)


def _is_new(part: Part, known: set[tuple[str, str]]) -> bool:
    if part.kind in (LINK, COMMON):
        return True  # where it leads depends on where it stands
    # What git reads only as a file has no effect as a folder.
    return part.state != "o" and (part.state == "u" or (part.kind, part.state) not in known)


def _listed(paths: Sequence[str]) -> str:
    names = ", ".join(shown(path) for path in paths[:MAX_NAMED])
    more = f" and {len(paths) - MAX_NAMED:,} more" if len(paths) > MAX_NAMED else ""
    return names + more


class _Disarming:
    def __init__(
        self,
        *,
        root: Path,
        now: Repositories,
        before: Mapping[str, Part],
        kept: Mapping[str, FileState],
    ) -> None:
        self._root = root
        self._before = before
        self._kept = kept
        self._folders = set(now.folders)
        self.disarmed: list[str] = []
        self.failed: list[str] = []

    def judge(self, path: str, part: Part) -> None:
        if not self._is_harmless(path, part):
            self._open_way(path)
            if not self._clean(path, part):
                self._put_aside(path)
                self._put_back(path)
            self.disarmed.append(path)

    def _is_harmless(self, path: str, part: Part) -> bool:
        """A way to a repository that lies in the folder is: its parts are looked at, too."""
        if part.kind not in (LINK, COMMON):
            if part.kind in STRATEGIES and part.state.startswith("f"):
                data = read_content(self._root, path, limit=MAX_CONFIG_BYTES)
                return data is not None and names_own_strategy(data)
            return part.kind in (*CONFIGS, *STEPS) and self._cleaned(path, part) is None
        target = self._target(path, part)
        if target is None:
            return False
        path = os.path.relpath(target, os.path.realpath(self._root))
        return ("" if path == "." else path) in self._folders

    def _target(self, path: str, part: Part) -> str | None:
        """Where a ``.git`` or a ``commondir`` leads."""
        base = self._root / os.path.dirname(path)
        if part.state.startswith("l"):
            return os.path.realpath(base / part.state[1:])
        text = read_content(self._root, path, limit=MAX_CONFIG_BYTES) or b""
        if part.kind == LINK:
            if not text.startswith(b"gitdir: "):
                return None
            text = text.removeprefix(b"gitdir: ")
        name = os.fsdecode(text.rstrip(b"\r\n"))
        return os.path.realpath(base / name) if name and "\0" not in name else None

    def _cleaned(self, path: str, part: Part) -> bytes | None:
        """The content without what is not harmless; None: all of it is. Empty: it cannot
        be told."""
        data = read_content(self._root, path, limit=MAX_CONFIG_BYTES)
        if data is None or not part.state.startswith("f"):
            return b""
        if part.kind in STEPS:
            clean = clean_steps(data, known=self._content_before(path))
        else:
            clean = clean_config(
                data,
                known=self._content_before(path),
                may_work_in=lambda place: self._lies_inside(path, place),
            )
        return None if clean == data else clean

    def _clean(self, path: str, part: Part) -> bool:
        if part.kind not in (*CONFIGS, *STEPS):
            return False
        clean = self._cleaned(path, part)
        if clean:
            put_file(self._root, path, clean, mode=0o644)
        return bool(clean)

    def _lies_inside(self, path: str, place: str) -> bool:
        base = self._root / os.path.dirname(path)
        real = os.path.realpath(base / place)
        return bool(place) and real.startswith(f"{os.path.realpath(self._root)}{os.sep}")

    def _content_before(self, path: str) -> bytes:
        part = self._before.get(path)
        digest = part.state[1:] if part and part.state.startswith("f") else ""
        return read_blob(digest) if digest and has_blob(digest) else b""

    def _open_way(self, path: str) -> None:
        """Let the owner into the folders on the way, for good: there is something to see."""
        parts = path.split("/")[:-1]
        for end in range(1, len(parts) + 1):
            folder = self._root.joinpath(*parts[:end])
            mode = stat.S_IMODE(os.lstat(folder).st_mode)
            if mode & 0o700 != 0o700:
                with suppress(OSError, LoomError):
                    change_mode(self._root, "/".join(parts[:end]), mode | 0o700)

    def _put_aside(self, path: str) -> None:
        with folder_of(self._root, path) as (folder, name):
            taken = set(os.listdir(folder))
            endings = (DISARMED, *(f".{number}{DISARMED}" for number in range(2, ATTEMPTS)))
            stem = name[: 255 - 20]
            aside = next(f"{stem}{e}" for e in endings if f"{stem}{e}" not in taken)
            os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)

    def _put_back(self, path: str) -> None:
        """What stood there before, as far as there is a copy of it."""
        part = self._before.get(path)
        with suppress(NoFolder):
            if part is not None and part.state.startswith("l"):
                put_link(self._root, path, os.fsencode(part.state[1:]))
            elif content := self._content_before(path):
                state = self._kept.get(path)
                put_file(self._root, path, content, mode=state.permissions if state else 0o644)
