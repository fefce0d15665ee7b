"""Brings a session back whose purge is ordered, or of which a copy was kept."""

from argparse import ArgumentParser
from contextlib import suppress
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.management.base import CommandError
from django.db import DatabaseError
from django.utils import timezone

from conversations.archive.audit import AuditOrigin
from conversations.domain.errors import LoomError
from conversations.features.retention.restore import restore_session
from conversations.management.base import DatabaseCommand
from conversations.management.commands._first_run import make_first_user
from conversations.search.indexing import index_waiting

NAME = "restore_session"


class Command(DatabaseCommand):
    help = "Call the purge of a session off, or bring it back from cold storage."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("session", type=UUID, metavar="UUID")

    def handle(self, *, session: UUID, **_: Any) -> None:
        try:
            receipt = restore_session(
                session,
                origin=AuditOrigin(name=NAME, place=NAME),
                now=timezone.now(),
                default_owner=make_first_user(),
                root=settings.LOOM.workspace_roots[0],
            )
        except LoomError as error:
            raise CommandError(error.message) from error
        except DatabaseError as error:
            raise CommandError(f"Nothing was brought back: {error}") from error
        if receipt is None:
            self.stdout.write("called off: the session is as it was before")
            return
        with suppress(DatabaseError):  # then the first search does it
            index_waiting()
        self.stdout.write(
            f"restored: {receipt.turns} turns, {receipt.events} events, as the receipt"
            f" {receipt.uuid} says"
        )
