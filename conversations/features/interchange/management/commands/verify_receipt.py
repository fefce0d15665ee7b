"""The command that compares copies of purged sessions with their receipts."""

import gzip
import sys
import zlib
from argparse import ArgumentParser
from typing import IO, Any, cast

from django.core.management.base import CommandError

from conversations.features.interchange.receipt_checks import check_copy
from conversations.management.base import DatabaseCommand

GZIP = b"\x1f\x8b"


class Command(DatabaseCommand):
    help = "Compare the sessions of an interchange file (.jsonl or .jsonl.gz) with receipts."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="A file; - reads standard input.")

    def handle(self, *, file: str, **_: Any) -> None:
        count = damaged = 0
        try:
            with open(0 if file == "-" else file, "rb", closefd=file != "-") as raw:
                is_packed = raw.peek(len(GZIP)).startswith(GZIP)
                lines = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if is_packed else raw
                for checked in check_copy(lines):
                    count += 1
                    damaged += bool(checked.problem)
                    outcome = checked.problem or f"matches receipt {checked.receipt}"
                    self.stdout.write(
                        f"{checked.session}: {checked.turns} turns, {checked.events} events: "
                        f"{outcome}"
                    )
        except (OSError, EOFError, zlib.error) as error:
            raise CommandError(f"{file}: {error}", returncode=2) from error
        if not count:
            raise CommandError(f"{file} contains no session.", returncode=2)
        if damaged:
            sys.exit(1)
