import sys
from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError
from django.db import DatabaseError
from django.utils import timezone

from conversations.archive.audit import AuditOrigin
from conversations.archive.purge import PurgePlan, PurgeRequest, plan_purge, purge
from conversations.archive.sessions import get_session
from conversations.domain.errors import LoomError
from conversations.features.retention.service import clean_reason, holds_on, order_purge
from conversations.features.retention.worker import remove_contents
from conversations.management.base import DatabaseCommand
from conversations.models import Session

NAME = "purge_session"


class Command(DatabaseCommand):
    help = (
        "Schedule the purge of a session: it is archived, and removed after the grace period. "
        "A receipt remains. With --now it is removed at once."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("session", type=UUID, metavar="UUID")
        parser.add_argument("--reason", required=True, help="The reason; it is kept on record.")
        parser.add_argument("--dry-run", action="store_true", help="Count only, change nothing.")
        parser.add_argument("--now", action="store_true", help="Skip the grace period.")
        parser.add_argument(
            "--yes", action="store_true", help="Do not ask for confirmation (with --now)."
        )

    def handle(self, *, session: UUID, reason: str, **options: Any) -> None:
        try:
            reason = clean_reason(reason)
            found = get_session(session)
        except LoomError as error:
            raise CommandError(error.message, returncode=2) from error
        plan = plan_purge(found)
        self.stdout.write(_describe(found, plan))
        if options["dry_run"]:
            return
        if options["now"] and not options["yes"]:
            if not sys.stdin.isatty():
                raise CommandError("This cannot be undone. Confirm with --yes.", returncode=2)
            answer = input(f"Permanently delete {plan.row_count} rows? Type yes: ")
            if answer.strip().lower() != "yes":
                raise CommandError("Nothing was deleted.")
        now, origin = timezone.now(), AuditOrigin(name=NAME, place=NAME, reason=reason)
        try:
            if not options["now"]:
                order = order_purge(found, origin=origin, reason=reason, now=now)
                self.stdout.write(
                    f"scheduled: it will be purged on {order.due_at:%Y-%m-%d %H:%M} UTC; "
                    f"restore_session {found.uuid} cancels it"
                )
                return
            request = PurgeRequest(reason=reason, by_name=NAME)
            receipt = purge(found, order=request, origin=origin, now=now)
        except LoomError as error:
            raise CommandError(error.message) from error
        except DatabaseError as error:
            raise CommandError(f"Nothing was deleted: {error}") from error
        self.stdout.write(f"purged: receipt {receipt.uuid}, digest {receipt.digest}")
        if waiting := remove_contents(now).waiting:
            self.stdout.write(
                f"{waiting} contents were in use within the last hour; the next expire_sessions "
                "removes them"
            )


def _describe(session: Session, plan: PurgePlan) -> str:
    lines = [f"session {session.uuid} of {session.owner} in {session.workspace.slug}"]
    lines += [f"  {count:>9,} {name}" for name, count in plan.counts.items()]
    lines.append(f"  {len(plan.contents):>9,} contents, {plan.shared} of them used elsewhere too")
    for name, count in plan.folded.items():
        if count:
            lines.append(f"  {count:>9,} {name} stay, without the session")
    if plan.forks:
        lines.append(f"  {plan.forks:>9,} sessions lose the link to it")
    lines += [f"on hold: {hold.reason}" for hold in holds_on(session)]
    return "\n".join(lines)
