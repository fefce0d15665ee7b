"""Disarming new files that git would run or obey, after a command.

Files of this kind that existed before are read-only for commands. New ones (a new repository, a
link in place of a repository, a part that the repository did not have) are checked as soon as the
command has ended. Harmless configuration stays. Everything else is renamed to a name that git
ignores, or commented out, and the earlier content is restored. No content is lost.
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
from conversations.domain.messages import join_messages, say, say_number
from conversations.domain.text import number_text

from .disk import FileState, MissingFolder, folder_of, put_file, put_link

logger = logging.getLogger(__name__)

MAX_FAILED_FOLDERS = 100  # Workspaces whose parts that could not be disarmed are remembered
MAX_NAMED_PARTS = 10  # In a note
MAX_TRIED_NAMES = 1000  # For renaming a part


@dataclass(frozen=True, slots=True, kw_only=True)
class DisarmResult:
    """The paths of the parts that were disarmed, and of the parts that could not be (``failed``).

    ``is_whole`` is False if part of the folder was not scanned because it has too many files."""

    paths: Sequence[str] = ()
    failed: Sequence[str] = ()
    is_whole: bool = True

    @property
    def note(self) -> str:
        """A message for the model and for people; empty if there was nothing to do."""
        sentences = []
        if self.paths:
            sentences.append(
                say(
                    "Git would run or obey %(paths)s outside the sandbox, so it was disarmed: "
                    "renamed with the ending %(ending)s, or commented out.",
                    paths=_listed(self.paths),
                    ending=DISARMED,
                )
            )
        if self.failed:
            sentences.append(
                say(
                    "Do not use git in this folder before somebody has checked %(paths)s: git "
                    "would run or obey it, and it could not be disarmed.",
                    paths=_listed(self.failed),
                )
            )
        if not self.is_whole:
            sentences.append(
                say(
                    "The folder has too many files to scan completely: git might run something "
                    "new in its deepest folders."
                )
            )
        return join_messages(sentences)


def disarm(
    root: Path,
    before: Mapping[str, GitPart],
    *,
    contents: Mapping[str, bytes] | None = None,
    entries: Mapping[str, FileState] | None = None,
    was_held: Callable[[str], bool] = lambda _: False,
) -> DisarmResult:
    """Check everything that git obeys in the folder, and disarm what is new and not harmless.

    ``before`` has the parts that git obeyed earlier. ``contents`` (by digest) and ``entries`` (the
    states of files at that time) are used to decide what stays and to restore earlier content.
    ``was_held`` says whether the part at a path was read-only during the command; a change there
    was made by somebody else.

    A part stays if a part of the same kind had the same content before, because folders with a
    repository may be moved and copied."""
    real = os.path.realpath(root)
    now = find_repositories(root, known_parts=before)
    trusted = without_failed(root, before)
    trusted_states = {(part.kind, part.state) for part in trusted.values()}
    disarmed: list[str] = []
    failed: dict[str, GitPart] = {}
    with FolderReader(real) as reach:
        work = _Disarmer(root, reach, trusted, contents or {}, entries or {})
        for path, part in now.parts.items():
            # The target of a link or ``commondir`` depends on the part's own location. A folder has
            # no effect where git only reads a file.
            is_way = part.kind in (LINK, COMMON)
            is_old = part.state == "o" or (part.kind, part.state) in trusted_states
            if trusted.get(path) == part or (is_old and not is_way):
                continue
            if was_held(path) and _failed_before(real).get(path) != part:
                continue
            try:
                # A link to a repository inside the folder is harmless, because the parts of that
                # repository are checked, too.
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
    """Return the parts without those that an earlier command made and that could not be disarmed.

    Such parts are not trusted only because they existed before."""
    failed = _failed_before(os.path.realpath(root))
    return {path: part for path, part in parts.items() if failed.get(path) != part}


def _listed(paths: Sequence[str]) -> str:
    names = ", ".join(shown(path) for path in paths[:MAX_NAMED_PARTS])
    if len(paths) <= MAX_NAMED_PARTS:
        return names
    unnamed_count = len(paths) - MAX_NAMED_PARTS
    return say_number(
        "%(names)s and %(count)s more file",
        "%(names)s and %(count)s more files",
        unnamed_count,
        names=names,
        count=number_text(unnamed_count),
    )


@dataclass(frozen=True, slots=True)
class _Disarmer:
    root: Path
    reach: FolderReader
    before: Mapping[str, GitPart]
    contents: Mapping[str, bytes]
    entries: Mapping[str, FileState]

    def disarm(self, path: str, part: GitPart) -> None:
        """Comment out the lines of the part that are not harmless, if they can be determined.

        Otherwise rename the part, and restore the earlier content."""
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
        """Return the path inside the folder to which a ``.git`` or a ``commondir`` leads."""
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
        """Return the content without the lines that are not harmless.

        Return None if all lines are harmless, and empty bytes if this cannot be determined."""
        data = self._read(path)
        if data is None or not part.state.startswith("f"):
            return b""
        earlier = self._content_before(path)
        if part.kind in STEPS:
            clean = executed_files.clean_steps(data, known=earlier)
        else:

            def may_work_in(place: str) -> bool:
                return bool(place) and self.reach.resolve(os.path.dirname(path), place) is not None

            clean = executed_files.clean_config(data, known=earlier, may_work_in=may_work_in)
        return None if clean == data else clean

    def _content_before(self, path: str) -> bytes:
        part = self.before.get(path)
        digest = part.state[1:] if part and part.state.startswith("f") else ""
        if digest in self.contents:
            return self.contents[digest]
        return read_blob(digest) if digest and has_blob(digest) else b""

    def _put(self, path: str, content: bytes) -> None:
        state = self.entries.get(path)
        put_file(self.root, path, content, mode=state.permissions if state else 0o644)
