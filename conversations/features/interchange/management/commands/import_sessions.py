"""The command that imports sessions from interchange files and exports of other programs."""

import sys
from argparse import ArgumentParser
from contextlib import nullcontext, suppress
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.db import DatabaseError

from conversations.archive.workspaces import find_user, get_workspace
from conversations.domain.errors import LoomError
from conversations.features.interchange.import_sessions import ImportCounts, import_file
from conversations.features.interchange.import_targets import ImportTarget
from conversations.features.interchange.pipeline import AUTO, FORMATS, LOOM, ImportRun
from conversations.features.interchange.sources import UnreadableSource
from conversations.management.base import DatabaseCommand
from conversations.management.commands._first_run import make_first_user
from conversations.search.indexing import index_waiting

PROGRESS_LINES = 2000

JSONL = "jsonl"  # The name of the interchange format in ``export_sessions``.


class Command(DatabaseCommand):
    help = (
        "Import sessions from interchange files, databases of earlier Loom versions, Claude "
        "Code sessions, and exports of ChatGPT, Claude and Open WebUI: files, folders or ZIP "
        "archives, recognized by content. Importing again only adds what is new."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "files",
            nargs="+",
            metavar="FILE",
            help="A file, a folder or an archive; - reads an interchange file from standard input.",
        )
        parser.add_argument(
            "--format",
            choices=[AUTO, JSONL, *FORMATS],
            default=AUTO,
            help="The format, if the content does not show it.",
        )
        parser.add_argument(
            "--workspace",
            metavar="SLUG",
            help="The workspace for new sessions; overrides the file.",
        )
        parser.add_argument(
            "--owner", metavar="USERNAME", help="The owner of new sessions; overrides the file."
        )
        parser.add_argument(
            "--json",
            action="store_true",
            help="Print the report as one JSON object on standard output.",
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
        try:
            for name in files:  # check all files before the first is imported
                if Path(name).is_file():
                    Path(name).open("rb").close()
                elif name != "-":
                    Path(name).stat()
        except OSError as error:
            raise CommandError(f"{name}: {error.strerror}", returncode=2) from error
        try:
            target = ImportTarget(
                owner=find_user(owner) if owner is not None else None,
                default_owner=make_first_user(),
                workspace=get_workspace(workspace) if workspace is not None else None,
                root=settings.LOOM.workspace_roots[0],
            )
        except LoomError as error:
            raise CommandError(error.message, returncode=2) from error
        counts = ImportCounts()
        reports: list[dict[str, str]] = []
        try:
            for name in files:
                self._import(name, LOOM if format == JSONL else format, target, counts, reports)
        except DatabaseError as error:
            raise CommandError(
                f"The database stopped the import: {error} Imported sessions stay; run the same "
                "command again to continue."
            ) from error
        if json:
            self.stdout.write(dumps(asdict(counts) | {"reports": reports}))
        else:
            self.stdout.write(_summary(counts))
        if counts.turns_added:
            with suppress(DatabaseError):  # the first search will index the rest
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
        shown_name, path = "stdin" if name == "-" else name, Path(name)
        is_watched = sys.stderr.isatty()

        def report(line: Any, text: str) -> None:
            self.stderr.write(f"{shown_name}:{line}: {text}")
            reports.append({"file": shown_name, "place": str(line), "text": text})

        def progress() -> None:
            if is_watched and counts.lines % PROGRESS_LINES == 0:
                sys.stderr.write(f"\r{counts.lines} lines ")
                sys.stderr.flush()

        try:
            if path.is_file() or path.is_dir():
                ImportRun(target, counts, report, progress, format).run(path, name=path.name)
            else:  # a pipe
                with nullcontext(sys.stdin.buffer) if name == "-" else path.open("rb") as stream:
                    import_file(
                        stream, target=target, counts=counts, report=report, progress=progress
                    )
        except UnreadableSource as error:
            raise CommandError(f"{shown_name}: {error}", returncode=2) from error
        except OSError as error:
            raise CommandError(f"{shown_name}: {error.strerror or error}", returncode=2) from error
        if is_watched and counts.lines >= PROGRESS_LINES:
            sys.stderr.write("\r\033[K")


def _summary(c: ImportCounts) -> str:
    lines = [
        f"sessions: {c.sessions_added} added, {c.sessions_extended} extended,"
        f" {c.sessions_unchanged} unchanged",
        f"turns: {c.turns_added} added, {c.turns_unchanged} unchanged",
        f"events: {c.events_added} added, {c.events_unchanged} unchanged",
        f"lines: {c.lines} read, {c.skipped} skipped, {c.conflicts} in conflict,"
        f" {c.repaired} kept but not as they are",
    ]
    if c.damaged:
        lines.append(f"sessions that differ from their export: {c.damaged}")
    return "\n".join(lines)
