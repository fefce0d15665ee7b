"""Makes the session state anew from the archive, or checks it."""

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError

from conversations.archive.session_state import check_state, rebuild_state, walk_sessions
from conversations.archive.sessions import get_session
from conversations.domain.errors import LoomError
from conversations.management.base import DatabaseCommand
from conversations.models import Session


class Command(DatabaseCommand):
    help = "Rebuild the session state and its checkpoints from the turns and edits."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--session", type=UUID, metavar="UUID", help="Only this one.")
        parser.add_argument("--check", action="store_true", help="Change nothing; compare.")

    def handle(self, *, session: UUID | None, check: bool, **_: Any) -> None:
        count = different = 0
        for pk, uuid in self._chosen(session):
            count += 1
            problem = check_state(pk) if check else _rebuild(pk)
            if problem:
                different += 1
                self.stdout.write(f"{uuid}: {problem}")
        self.stdout.write(f"{count} sessions: {count - different} as they should be")
        if check and different:
            sys.exit(1)

    def _chosen(self, session: UUID | None) -> Iterator[tuple[int, UUID]]:
        if session is None:
            return walk_sessions(Session.objects.all())
        try:
            return iter([(get_session(session).pk, session)])
        except LoomError as error:
            raise CommandError(error.message, returncode=2) from error


def _rebuild(session_pk: int) -> str:
    return "rebuilt" if rebuild_state(session_pk) else ""
