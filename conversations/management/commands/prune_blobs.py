from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from conversations.agent.undo.listing import MIN_UNTOUCHED_DAYS, prune_blobs
from conversations.management.base import DatabaseCommand
from conversations.rendering.source_text import size_text


class Command(DatabaseCommand):
    help = "Remove stored file contents that nothing refers to. The server may run meanwhile."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--days", type=int, default=7, help=f"Days without use, at least {MIN_UNTOUCHED_DAYS}."
        )
        parser.add_argument("--dry-run", action="store_true", help="Count only, remove nothing.")

    def handle(self, *, days: int, dry_run: bool, **_: Any) -> None:
        if days < MIN_UNTOUCHED_DAYS:
            raise CommandError(f"--days must be at least {MIN_UNTOUCHED_DAYS}.", returncode=2)
        done = prune_blobs(days=days, dry_run=dry_run)
        verb = "would be removed" if dry_run else "removed"
        self.stdout.write(
            f"{done['removed']} contents, {size_text(done['removed_bytes'])} {verb};"
            f" {done['kept']} stay, {size_text(done['kept_bytes'])}"
        )
