"""Holds a copy of a purged session against its receipt."""

import gzip
import sys
from argparse import ArgumentParser
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

from django.core.management.base import BaseCommand, CommandError

from conversations.archive.receipts import check_copy

GZIP = b"\x1f\x8b"


class Command(BaseCommand):
    help = "Compare the sessions of an interchange file (.jsonl or .jsonl.gz) with receipts."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="A file; - is standard input.")

    def handle(self, *, file: str, **_: Any) -> None:
        count = damaged = 0
        with ExitStack() as stack:
            try:
                for checked in check_copy(_open(file, stack)):
                    count += 1
                    damaged += bool(checked.problem)
                    said = checked.problem or f"what was purged, by receipt {checked.receipt}"
                    self.stdout.write(
                        f"{checked.session}: {checked.turns} turns, {checked.events} events: {said}"
                    )
            except (OSError, EOFError) as error:
                raise CommandError(f"{file}: {error}", returncode=2) from error
        if not count:
            raise CommandError(f"{file} has no session.", returncode=2)
        if damaged:
            sys.exit(1)


def _open(name: str, stack: ExitStack) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    raw = stack.enter_context(Path(name).open("rb"))
    start = raw.read(2)
    raw.seek(0)
    if start != GZIP:
        return raw
    return cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=raw, mode="rb")))
