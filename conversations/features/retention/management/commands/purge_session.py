"""Removes a session from the archive, after the grace period or at once."""

import sys
from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError
from django.db import DatabaseError
from django.utils import timezone

from conversations.archive.audit import AuditOrigin
from conversations.archive.purge import PurgePlan, PurgeRequest, plan_purge
from conversations.archive.sessions import get_session
from conversations.domain.errors import LoomError
from conversations.features.retention.cold_storage import require_cold_storage
from conversations.features.retention.holds import clean_reason, holds_on
from conversations.features.retention.orders import order_purge
from conversations.features.retention.service import execute, grace, remove_contents
from conversations.management.base import DatabaseCommand
from conversations.models import Session

NAME = "purge_session"


class Command(DatabaseCommand):
    help = (
        "Order the purge of a session: it is archived, and removed after the grace period."
        " A receipt remains. With --now it is removed at once."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("session", type=UUID, metavar="UUID")
        parser.add_argument("--reason", required=True, help="Why; it stays on record.")
        parser.add_argument("--dry-run", action="store_true", help="Count, do nothing.")
        parser.add_argument("--now", action="store_true", help="Without a grace period.")
        parser.add_argument("--yes", action="store_true", help="Do not ask (with --now).")
        parser.add_argument(
            "--to-cold-storage",
            action="store_true",
            help="Keep a copy first, also where the workspace does not ask for one.",
        )

    def handle(self, *, session: UUID, reason: str, **options: Any) -> None:
        try:
            reason = clean_reason(reason)
            if options["to_cold_storage"]:
                require_cold_storage()
            found = get_session(session)
        except LoomError as error:
            raise CommandError(error.message, returncode=2) from error
        plan = plan_purge(found)
        self.stdout.write(_describe(found, plan))
        if options["dry_run"]:
            return
        try:
            if options["now"]:
                self._purge(found, reason, plan, options)
            else:
                self._order(found, reason, keeps_copy=options["to_cold_storage"])
        except LoomError as error:
            raise CommandError(error.message) from error
        except DatabaseError as error:
            raise CommandError(f"Nothing was removed: {error}") from error

    def _order(self, session: Session, reason: str, *, keeps_copy: bool) -> None:
        order = order_purge(
            session,
            origin=_origin(reason),
            reason=reason,
            now=timezone.now(),
            grace=grace(),
            keeps_copy=keeps_copy,
        )
        self.stdout.write(
            f"ordered: it will be purged on {order.due_at:%Y-%m-%d %H:%M} UTC;"
            f" restore_session {session.uuid} calls that off"
        )

    def _purge(
        self, session: Session, reason: str, plan: PurgePlan, options: dict[str, Any]
    ) -> None:
        if not options["yes"] and not self._is_sure(plan):
            raise CommandError("Nothing was removed.")
        now = timezone.now()
        receipt = execute(
            session,
            order=PurgeRequest(reason=reason, by_name=NAME),
            origin=_origin(reason),
            now=now,
            to_cold_storage=options["to_cold_storage"],
        )
        contents = remove_contents(now)
        self.stdout.write(f"purged: receipt {receipt.uuid}, digest {receipt.digest}")
        if receipt.cold_name:
            self.stdout.write(f"copy: {receipt.cold_name}, sha256 {receipt.cold_digest}")
        if contents.waiting:
            self.stdout.write(
                f"{contents.waiting} contents were in use within the hour; the next"
                " expire_sessions removes them"
            )

    def _is_sure(self, plan: PurgePlan) -> bool:
        if not sys.stdin.isatty():
            raise CommandError("This cannot be undone. Say --yes.", returncode=2)
        answer = input(f"Remove {plan.row_count} rows for good? Type yes: ")
        return answer.strip().lower() == "yes"


def _origin(reason: str) -> AuditOrigin:
    return AuditOrigin(name=NAME, place=NAME, reason=reason)


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
