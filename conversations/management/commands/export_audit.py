from argparse import ArgumentParser, ArgumentTypeError
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from conversations.archive.audit import AuditOrigin
from conversations.archive.workspaces import find_user, get_workspace
from conversations.management.base import DatabaseCommand, open_output, refuse_empty
from conversations.review.audit_log import ACTIONS, FORMATS, AuditLogFilter, export_log


def day(text: str) -> datetime:
    """Return the beginning of a day in UTC."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError as error:
        raise ArgumentTypeError("a date must look like 2026-01-31") from error


class Command(DatabaseCommand):
    help = "Export the audit log as JSON lines or CSV. The export itself is recorded in it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--format", choices=sorted(FORMATS), default="jsonl")
        parser.add_argument("--person", metavar="NAME", help="Only entries of this person.")
        parser.add_argument("--action", choices=sorted(ACTIONS), default="", metavar="ACTION")
        parser.add_argument("--session", type=UUID, metavar="UUID")
        parser.add_argument("--workspace", metavar="SLUG")
        parser.add_argument(
            "--after", type=day, metavar="DATE", help="From this day on, inclusive."
        )
        parser.add_argument("--before", type=day, metavar="DATE", help="Up to this day, exclusive.")
        parser.add_argument(
            "--output", metavar="FILE", help="Write to FILE instead of standard output."
        )

    def handle(self, *, format: str, person: str | None, output: str | None, **asked: Any) -> None:
        if asked["workspace"] is not None:
            refuse_empty(workspace=asked["workspace"])
            get_workspace(asked["workspace"])
        names = ("action", "session", "after", "before")
        user = find_user(person, even_closed=True) if person is not None else None
        chosen = {name: asked[name] for name in names}
        wanted = AuditLogFilter(person=user, workspace=asked["workspace"] or "", **chosen)
        with open_output(output, self.stdout) as stream:
            stream.writelines(
                export_log(wanted, format=format, origin=AuditOrigin(name="export_audit"))
            )
