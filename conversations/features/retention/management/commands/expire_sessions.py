import sys
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.utils import timezone

from conversations.domain.text import dump_json
from conversations.features.retention.worker import RetentionReport, run_retention
from conversations.management.base import DatabaseCommand


class Command(DatabaseCommand):
    help = (
        "Mark expired sessions, schedule purges according to the workspaces' policies, and "
        "execute those that are due. The server does this every hour."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="Report only, change nothing.")
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")

    def handle(self, *, dry_run: bool, json: bool, **_: Any) -> None:
        report = run_retention(now=timezone.now(), dry_run=dry_run)
        self.stdout.write(dump_json(asdict(report)) if json else describe(report))
        if report.failed:
            sys.exit(1)


def describe(report: RetentionReport) -> str:
    lines = []
    for kind in report.counts:
        for item in getattr(report, kind):
            fact_names = [name for name in item if name not in ("session", "workspace")]
            facts = " ".join(f"{name}={item[name]}" for name in fact_names if item[name] != "")
            lines.append(f"{kind:8} {item['session']} {item['workspace']} {facts}")
    counts = ", ".join(f"{count} {kind}" for kind, count in report.counts.items())
    lines.append(f"{'would be: ' if report.dry_run else ''}{counts}")
    if not report.dry_run:
        kept_contents = f"{report.contents.shared} shared, {report.contents.waiting} wait"
        lines.append(f"contents: {report.contents.removed} removed, {kept_contents}")
    return "\n".join(lines)
