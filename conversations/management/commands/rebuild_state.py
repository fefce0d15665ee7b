import sys
from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from conversations.archive.session_state import check_state, rebuild_state, walk_sessions
from conversations.archive.sessions import get_session
from conversations.management.base import DatabaseCommand
from conversations.models import Session


class Command(DatabaseCommand):
    help = "Rebuild the session state and its checkpoints from the turns and edits."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--session", type=UUID, metavar="UUID", help="Only this session.")
        parser.add_argument("--check", action="store_true", help="Compare only, change nothing.")

    def handle(self, *, session: UUID | None, check: bool, **_: Any) -> None:
        every = walk_sessions(Session.objects.all())
        chosen = [(get_session(session).pk, session)] if session else every
        count = different = 0
        for pk, uuid in chosen:
            count += 1
            problem = check_state(pk) if check else "rebuilt" if rebuild_state(pk) else ""
            if problem:
                different += 1
                self.stdout.write(f"{uuid}: {problem}")
        self.stdout.write(f"{count} sessions: {count - different} correct")
        if check and different:
            sys.exit(1)
