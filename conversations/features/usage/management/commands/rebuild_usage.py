import sys
from argparse import ArgumentParser
from typing import Any

from conversations.features.usage.recording import find_differences, rebuild_usage
from conversations.management.base import DatabaseCommand


class Command(DatabaseCommand):
    help = "Add up anew what model calls used, from the records of the calls."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--check",
            action="store_true",
            help="Change nothing; name what differs, with exit code 1.",
        )

    def handle(self, *, check: bool, **_: Any) -> None:
        different = find_differences()
        for line in different:
            self.stdout.write(f"differs: {line}")
        if check:
            self.stdout.write(f"{len(different)} sums differ" if different else "all as recorded")
            sys.exit(1 if different else 0)
        self.stdout.write(f"{rebuild_usage()} rows")
