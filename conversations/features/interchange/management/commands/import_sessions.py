"""Imports sessions from interchange files and from the exports of other programs."""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.db import DatabaseError

from conversations.archive.workspaces import find_user, get_workspace
from conversations.domain.errors import LoomError
from conversations.features.interchange.import_sessions import ImportCounts, Report, import_file
from conversations.features.interchange.import_targets import ImportTarget
from conversations.features.interchange.opening import NotReadable
from conversations.features.interchange.running import AUTO, FORMATS, LOOM, Running
from conversations.management.base import DatabaseCommand
from conversations.management.commands._first_run import make_first_user
from conversations.search.indexing import index_waiting

PROGRESS_LINES = 2000

JSONL = "jsonl"
"""The interchange file by the name that ``export_sessions`` gives it."""


class Command(DatabaseCommand):
    help = (
        "Import sessions from interchange files, databases of earlier Loom versions, Claude"
        " Code sessions, and exports of ChatGPT, Claude and Open WebUI: files, folders or"
        " ZIP archives, known by their content. Importing again adds what is new and changes"
        " nothing else."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "files",
            nargs="+",
            metavar="FILE",
            help="A file, a folder or an archive; - is an interchange file on standard input.",
        )
        parser.add_argument(
            "--format",
            choices=[AUTO, JSONL, *FORMATS],
            default=AUTO,
            help="What the files are, where their content does not say it.",
        )
        parser.add_argument(
            "--workspace", metavar="SLUG", help="Where sessions go, whatever the file says."
        )
        parser.add_argument(
            "--owner", metavar="USERNAME", help="Whose they are, whatever the file says."
        )
        parser.add_argument(
            "--json", action="store_true", help="The report as one JSON object on standard output."
        )

    def handle(
        self,
        *,
        files: list[str],
        format: str,
        workspace: str | None,
        owner: str | None,
        json: bool,
        **_: Any,
    ) -> None:
        _check_files(files)
        target, counts = _target(workspace, owner), ImportCounts()
        reports: list[dict[str, str]] = []
        try:
            for name in files:
                self._import(name, LOOM if format == JSONL else format, target, counts, reports)
        except DatabaseError as error:
            raise CommandError(
                f"The database stopped the import: {error} What was imported stays;"
                " the same command goes on."
            ) from error
        self._summarise(counts, reports if json else None)
        if counts.turns_added:
            with suppress(DatabaseError):  # then the first search does it
                index_waiting()
        if not counts.is_clean:
            sys.exit(1)

    def _import(
        self,
        name: str,
        format: str,
        target: ImportTarget,
        counts: ImportCounts,
        reports: list[dict[str, str]],
    ) -> None:
        shown = "stdin" if name == "-" else name
        is_watched = sys.stderr.isatty()

        def report(line: Any, text: str) -> None:
            self.stderr.write(f"{shown}:{line}: {text}")
            reports.append({"file": shown, "place": str(line), "text": text})

        def progress() -> None:
            if is_watched and counts.lines % PROGRESS_LINES == 0:
                sys.stderr.write(f"\r{counts.lines} lines ")
                sys.stderr.flush()

        try:
            _read(name, format, target, counts, report, progress)
        except NotReadable as error:
            raise CommandError(f"{shown}: {error}", returncode=2) from error
        except OSError as error:
            raise CommandError(f"{shown}: {error.strerror or error}", returncode=2) from error
        if is_watched and counts.lines >= PROGRESS_LINES:
            sys.stderr.write("\r\033[K")

    def _summarise(self, counts: ImportCounts, reports: list[dict[str, str]] | None) -> None:
        """In words, or with ``reports`` as JSON."""
        if reports is not None:
            self.stdout.write(json.dumps(asdict(counts) | {"reports": reports}))
            return
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


def _read(
    name: str,
    format: str,
    target: ImportTarget,
    counts: ImportCounts,
    report: Report,
    progress: Callable[[], None],
) -> None:
    if not (Path(name).is_file() or Path(name).is_dir()):  # a pipe
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as stream:
            import_file(stream, target=target, counts=counts, report=report, progress=progress)
        return
    running = Running(target, counts, report, progress, format)
    running.run(Path(name), name=Path(name).name)


def _check_files(files: list[str]) -> None:
    """All of them before the first is imported."""
    for name in files:
        try:
            if Path(name).is_file():
                Path(name).open("rb").close()
            elif name != "-":
                Path(name).stat()
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
