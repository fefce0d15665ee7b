"""Disarming what git would run or obey and what came into being while a command ran.

What was there before is read-only for commands. What was not (a new repository, a link in the place
of one, a part that git had not had) is looked at as soon as the command has ended: harmless
configuration stays, all else is put aside under a name that git does not know, or made a comment,
and what stood there before is put back. Nothing is lost by it.
"""

import errno
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from conversations.agent.files import executed_files
from conversations.agent.files.executed_files import COMMON, CONFIGS, DISARMED, STEPS
from conversations.agent.files.paths import rename_to_nothing, shown
from conversations.agent.files.text_files import LRUCache
from conversations.agent.sandbox.repositories import LINK, FolderReader, GitPart, find_repositories
from conversations.archive.blobs import has_blob, read_blob
from conversations.domain.errors import LoomError
from conversations.domain.messages import join_messages, say
from conversations.domain.text import number_text

from .disk import FileState, MissingFolder, folder_of, put_file, put_link

logger = logging.getLogger(__name__)

MAX_FAILED_FOLDERS = 100  # Workspaces of which it is remembered what could not be disarmed
MAX_NAMED_PARTS = 10  # In a note
MAX_TRIED_NAMES = 1000  # For a part that is put aside


@dataclass(frozen=True, slots=True, kw_only=True)
class DisarmResult:
    """The parts that were disarmed, by path, and those that could not be. ``is_whole`` False: part
    of the folder was not looked at, there is too much."""

    paths: Sequence[str] = ()
    failed: Sequence[str] = ()
    is_whole: bool = True

    @property
    def note(self) -> str:
        """For the model and the people; empty where there was nothing to do."""
        told = []
        if self.paths:
            told.append(
                say(
                    "Git would run or obey %(paths)s outside the sandbox, so it was disarmed: "
                    "renamed with the ending %(ending)s, or commented out.",
                    paths=_listed(self.paths),
                    ending=DISARMED,
                )
            )
        if self.failed:
            told.append(
                say(
                    "Do not use git in this folder before somebody has checked %(paths)s: git "
                    "would run or obey it, and it could not be disarmed.",
                    paths=_listed(self.failed),
                )
            )
        if not self.is_whole:
            told.append(
                say(
                    "The folder has too many files to scan completely: git might run something "
                    "new in its deepest folders."
                )
            )
        return join_messages(told)


def disarm(
    root: Path,
    before: Mapping[str, GitPart],
    *,
    contents: Mapping[str, bytes] | None = None,
    kept: Mapping[str, FileState] | None = None,
    was_held: Callable[[str], bool] = lambda _: False,
) -> DisarmResult:
    """Look at everything that git obeys in the folder; ``before`` is what it obeyed earlier,
    ``contents`` by digest and ``kept`` the states of files then, for what stays and is put back.
    ``was_held``: the part at the path was read-only meanwhile, so that what changed in it is
    somebody else's.

    A part with the content of one of the same kind that was there before stays: folders with a
    repository may be moved and copied."""
    real = os.path.realpath(root)
    now = find_repositories(root, known=before)
    trusted = without_failed(root, before)
    known = {(part.kind, part.state) for part in trusted.values()}
    disarmed: list[str] = []
    failed: dict[str, GitPart] = {}
    with FolderReader(real) as reach:
        work = _Disarmer(root, reach, trusted, contents or {}, kept or {})
        for path, part in now.parts.items():
            # Where a way leads depends on where it stands. What git reads only as a file has no
            # effect as a folder.
            is_way = part.kind in (LINK, COMMON)
            is_old = part.state == "o" or (part.kind, part.state) in known
            if trusted.get(path) == part or (is_old and not is_way):
                continue
            if was_held(path) and _failed_before(real).get(path) != part:
                continue
            try:
                # A way to a repository that lies in the folder is harmless: its parts are looked
                # at, too.
                target = work.target(path, part) if is_way else None
                if target in now.folders if is_way else work.is_harmless(path, part):
                    continue
                work.disarm(path, part)
                disarmed.append(path)
            except (OSError, LoomError):
                logger.warning("git_part_not_disarmed", exc_info=True)
                failed[path] = part
    _failed.store(real, failed)
    return DisarmResult(paths=sorted(disarmed), failed=sorted(failed), is_whole=now.is_whole)


_failed = LRUCache[str, dict[str, GitPart]](size=MAX_FAILED_FOLDERS)


def _failed_before(root: str) -> dict[str, GitPart]:
    return _failed.find(root) or {}


def without_failed(root: Path, parts: Mapping[str, GitPart]) -> dict[str, GitPart]:
    """Without those that came from an earlier command and could not be disarmed then: they are no
    more trusted for having been there."""
    failed = _failed_before(os.path.realpath(root))
    return {path: part for path, part in parts.items() if failed.get(path) != part}


def _listed(paths: Sequence[str]) -> str:
    names = ", ".join(shown(path) for path in paths[:MAX_NAMED_PARTS])
    if len(paths) <= MAX_NAMED_PARTS:
        return names
    return say(
        "%(names)s and %(count)s more", names=names, count=number_text(len(paths) - MAX_NAMED_PARTS)
    )


@dataclass(frozen=True, slots=True)
class _Disarmer:
    root: Path
    reach: FolderReader
    before: Mapping[str, GitPart]
    contents: Mapping[str, bytes]
    kept: Mapping[str, FileState]

    def disarm(self, path: str, part: GitPart) -> None:
        """Make a comment of what is not harmless in the part, where that can be told; else put it
        aside, and what stood there before back."""
        self.reach.grant_owner_access(path)
        is_text = part.kind in (*CONFIGS, *STEPS)
        if is_text and (clean := self._cleaned(path, part)):
            self._put(path, clean)
            return
        with folder_of(self.root, path) as (folder, name):
            endings = (DISARMED, *(f".{number}{DISARMED}" for number in range(2, MAX_TRIED_NAMES)))
            for ending in endings:
                with suppress(FileExistsError):
                    rename_to_nothing(folder, name, folder, f"{name[: 255 - 20]}{ending}")
                    break
            else:
                raise FileExistsError(errno.EEXIST, path)
        before = self.before.get(path)
        with suppress(MissingFolder):
            if before is not None and before.state.startswith("l"):
                put_link(self.root, path, os.fsencode(before.state[1:]))
            elif content := self._content_before(path):
                self._put(path, content)

    def is_harmless(self, path: str, part: GitPart) -> bool:
        if part.kind in executed_files.STRATEGIES and part.state.startswith("f"):
            data = self._read(path)
            return data is not None and executed_files.names_own_strategy(data)
        return part.kind in (*CONFIGS, *STEPS) and self._cleaned(path, part) is None

    def target(self, path: str, part: GitPart) -> str | None:
        """Where a ``.git`` or a ``commondir`` leads inside of the folder."""
        base = os.path.dirname(path)
        if part.state.startswith("l"):
            return self.reach.resolve(base, part.state[1:])
        text = self._read(path) or b""
        if part.kind == LINK:
            text = text.removeprefix(b"gitdir: ") if text.startswith(b"gitdir: ") else b""
        name = os.fsdecode(text.rstrip(b"\r\n"))
        return self.reach.resolve(base, name) if name and "\0" not in name else None

    def _read(self, path: str) -> bytes | None:
        try:
            return self.reach.read(path, limit=executed_files.MAX_CONFIG_BYTES)
        except PermissionError:
            return None

    def _cleaned(self, path: str, part: GitPart) -> bytes | None:
        """The content without what is not harmless; None: all of it is. Empty: it cannot be
        told."""
        data = self._read(path)
        if data is None or not part.state.startswith("f"):
            return b""
        known = self._content_before(path)
        if part.kind in STEPS:
            clean = executed_files.clean_steps(data, known=known)
        else:

            def may_work_in(place: str) -> bool:
                return bool(place) and self.reach.resolve(os.path.dirname(path), place) is not None

            clean = executed_files.clean_config(data, known=known, may_work_in=may_work_in)
        return None if clean == data else clean

    def _content_before(self, path: str) -> bytes:
        part = self.before.get(path)
        digest = part.state[1:] if part and part.state.startswith("f") else ""
        if digest in self.contents:
            return self.contents[digest]
        return read_blob(digest) if digest and has_blob(digest) else b""

    def _put(self, path: str, content: bytes) -> None:
        state = self.kept.get(path)
        put_file(self.root, path, content, mode=state.permissions if state else 0o644)
