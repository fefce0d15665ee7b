"""The command that exports sessions as an interchange file, as Markdown, or as API messages."""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError

from conversations.archive.workspaces import get_workspace
from conversations.domain.errors import Conflict, LoomError, NotFound
from conversations.features.interchange.export import FORMATS, choose_sessions
from conversations.management.base import DatabaseCommand, open_output
from conversations.models import Session

PROGRESS_LINES = 2000


class Command(DatabaseCommand):
    help = "Export sessions: complete, as Markdown, or as messages of other APIs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--session", type=UUID, metavar="UUID")
        which.add_argument("--workspace", metavar="SLUG")
        which.add_argument("--all", action="store_true", help="All sessions.")
        parser.add_argument("--format", choices=list(FORMATS), default="jsonl")
        parser.add_argument(
            "--output", metavar="FILE", help="Write to FILE instead of standard output."
        )

    def handle(
        self,
        *,
        session: UUID | None,
        workspace: str | None,
        format: str,
        output: str | None,
        **_: Any,
    ) -> None:
        try:
            if workspace is not None:
                get_workspace(workspace)
            sessions = choose_sessions(session=session, workspace=workspace)
        except LoomError as error:
            raise CommandError(error.message, returncode=2) from error
        try:
            with open_output(output, self.stdout) as stream:
                is_watched = sys.stderr.isatty() and not stream.isatty()
                count = 0
                for count, piece in enumerate(_pieces(format, sessions), start=1):
                    stream.write(piece)
                    if is_watched and count % PROGRESS_LINES == 0:
                        sys.stderr.write(f"\r{count} lines ")
                        sys.stderr.flush()
                if is_watched and count >= PROGRESS_LINES:
                    sys.stderr.write("\r\033[K")
        except Conflict as error:  # purged meanwhile: no usage error, so not exit code 2
            raise CommandError(error.message) from error
        except BrokenPipeError:
            # The reader has closed the pipe, so the interpreter must not flush to it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _pieces(format: str, sessions: Iterator[Session]) -> Iterator[str]:
    for place, session in enumerate(sessions):
        if place and format == "markdown":
            yield "\n---\n\n"
        with suppress(NotFound):  # purged meanwhile
            yield from FORMATS[format].write(session)
