import sys
from argparse import ArgumentParser
from typing import Any

from conversations.features.usage.recording import find_differences, rebuild_usage
from conversations.management.base import DatabaseCommand


class Command(DatabaseCommand):
    help = "Recompute the usage totals from the records of model calls."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--check",
            action="store_true",
            help="Change nothing; report differences with exit code 1.",
        )

    def handle(self, *, check: bool, **_: Any) -> None:
        different = find_differences()
        for line in different:
            self.stdout.write(f"differs: {line}")
        if check:
            self.stdout.write(
                f"{len(different)} totals differ" if different else "all totals match"
            )
            sys.exit(1 if different else 0)
        self.stdout.write(f"{rebuild_usage()} rows")
