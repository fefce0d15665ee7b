"""Looks after what has had its time: expired sessions, policies, due purges."""

import sys
from argparse import ArgumentParser
from typing import Any

from django.utils import timezone

from conversations.domain.text import dump_json
from conversations.features.retention.service import Report, RetentionItem, run_retention
from conversations.management.base import DatabaseCommand


class Command(DatabaseCommand):
    help = (
        "Take note of expired sessions, order purges where a workspace's policy asks for"
        " them, carry out those that are due. The server does this by itself every hour."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="Say it, do nothing.")
        parser.add_argument("--json", action="store_true", help="Report as one JSON object.")

    def handle(self, *, dry_run: bool, json: bool, **_: Any) -> None:
        report = run_retention(now=timezone.now(), dry_run=dry_run)
        self.stdout.write(dump_json(report.as_dict()) if json else describe(report))
        if report.failed:
            sys.exit(1)


def describe(report: Report) -> str:
    """The report as lines for a terminal or a log."""
    lines = [_line(kind, item) for kind in report.counts for item in getattr(report, kind)]
    counts = ", ".join(f"{count} {kind}" for kind, count in report.counts.items())
    contents = report.contents
    lines.append(f"{'would be: ' if report.dry_run else ''}{counts}")
    if not report.dry_run:
        lines.append(
            f"contents: {contents.removed} removed, {contents.shared} shared,"
            f" {contents.waiting} wait"
        )
    return "\n".join(lines)


def _line(kind: str, item: RetentionItem) -> str:
    facts = " ".join(
        f"{name}={value}" for name, value in item.facts.items() if value not in ("", False)
    )
    return f"{kind:8} {item.session} {item.workspace} {facts}"
