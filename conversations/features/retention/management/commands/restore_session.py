from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError
from django.utils import timezone

from conversations.archive.audit import AuditOrigin
from conversations.archive.sessions import get_session
from conversations.domain.errors import LoomError
from conversations.features.retention.service import call_off_purge
from conversations.management.base import DatabaseCommand


class Command(DatabaseCommand):
    help = (
        "Cancel the scheduled purge of a session. To restore a purged session, import its export."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("session", type=UUID, metavar="UUID")

    def handle(self, *, session: UUID, **_: Any) -> None:
        origin = AuditOrigin(name="restore_session", place="restore_session")
        found = get_session(session)
        try:
            call_off_purge(found, origin=origin, now=timezone.now())
        except LoomError as error:
            raise CommandError(error.message) from error
        self.stdout.write("cancelled: the session is as it was before")
