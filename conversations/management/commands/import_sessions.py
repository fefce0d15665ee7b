"""Imports sessions from interchange files."""

import sys
from argparse import ArgumentParser
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from conversations.archive.import_sessions import ImportCounts, import_file
from conversations.archive.import_targets import ImportTarget
from conversations.archive.search.indexing import index_waiting
from conversations.archive.workspaces import find_user, get_workspace
from conversations.domain.errors import LoomError

from ._first_run import make_first_user

PROGRESS_LINES = 2000


class Command(BaseCommand):
    help = (
        "Import sessions from interchange files (JSON lines). Importing a file again adds"
        " what is new in it and changes nothing else."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("files", nargs="+", metavar="FILE", help="A file; - is standard input.")
        parser.add_argument("--format", choices=["jsonl"], default="jsonl")
        parser.add_argument(
            "--workspace", metavar="SLUG", help="Where sessions go, whatever the file says."
        )
        parser.add_argument(
            "--owner", metavar="USERNAME", help="Whose they are, whatever the file says."
        )

    def handle(
        self, *, files: list[str], workspace: str | None, owner: str | None, **_: Any
    ) -> None:
        counts = ImportCounts()
        with ExitStack() as stack:
            streams = [(name, _open(name, stack)) for name in files]
            try:
                target = _target(workspace, owner)
                for name, stream in streams:
                    self._import(name, stream, target, counts)
            except DatabaseError as error:
                raise CommandError(
                    f"The database stopped the import: {error} What was imported stays;"
                    " the same command goes on."
                ) from error
        self._summarise(counts)
        if counts.turns_added:
            with suppress(DatabaseError):  # then the first search does it
                index_waiting()
        if not counts.is_clean:
            sys.exit(1)

    def _import(
        self, name: str, stream: BinaryIO, target: ImportTarget, counts: ImportCounts
    ) -> None:
        shown = "stdin" if name == "-" else name
        is_watched = sys.stderr.isatty()

        def report(line: int, text: str) -> None:
            self.stderr.write(f"{shown}:{line}: {text}")

        def progress() -> None:
            if is_watched and counts.lines % PROGRESS_LINES == 0:
                sys.stderr.write(f"\r{counts.lines} lines ")
                sys.stderr.flush()

        try:
            import_file(stream, target=target, counts=counts, report=report, progress=progress)
        except OSError as error:
            raise CommandError(f"{shown}: {error.strerror or error}", returncode=2) from error
        if is_watched and counts.lines >= PROGRESS_LINES:
            sys.stderr.write("\r\033[K")

    def _summarise(self, counts: ImportCounts) -> None:
        c = counts
        lines = [
            f"sessions: {c.sessions_added} added, {c.sessions_extended} extended,"
            f" {c.sessions_unchanged} unchanged",
            f"turns: {c.turns_added} added, {c.turns_unchanged} unchanged",
            f"events: {c.events_added} added, {c.events_unchanged} unchanged",
            f"lines: {c.lines} read, {c.skipped} skipped, {c.conflicts} in conflict,"
            f" {c.repaired} kept but not as they are",
        ]
        if c.damaged:
            lines.append(f"sessions that are not what was exported: {c.damaged}")
        self.stdout.write("\n".join(lines))


def _open(name: str, stack: ExitStack) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    try:
        return stack.enter_context(open(name, "rb"))
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}", returncode=2) from error


def _target(workspace: str | None, owner: str | None) -> ImportTarget:
    try:
        return ImportTarget(
            owner=find_user(owner) if owner else None,
            default_owner=make_first_user(),
            workspace=get_workspace(workspace) if workspace else None,
            root=settings.LOOM.workspace_roots[0],
        )
    except LoomError as error:
        raise CommandError(error.message, returncode=2) from error
