"""Makes the search index anew from the turns, or compares it with them."""

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from conversations.archive.sessions import find_session
from conversations.domain.errors import LoomError
from conversations.management.base import DatabaseCommand
from conversations.search.rebuild import (
    check_index,
    check_session,
    mend_index,
    rebuild_session,
    sessions_in_order,
)

PROGRESS_TURNS = 1000


class Command(DatabaseCommand):
    help = "Make the search index anew while the server runs, or check it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--session", metavar="UUID", help="Only this one.")
        parser.add_argument("--check", action="store_true", help="Compare, change nothing.")

    def handle(self, *, session: str | None, check: bool, **_: Any) -> None:
        try:
            only = find_session(session).pk if session else None
            problems = self._check(only) if check else self._rebuild(only)
        except LoomError as error:
            raise CommandError(error.message, returncode=2) from error
        except KeyboardInterrupt:
            raise CommandError("Stopped; run it again to finish.", returncode=130) from None
        if problems:
            sys.exit(1)

    def _rebuild(self, only: int | None) -> int:
        sessions, turns = sessions_in_order(only), 0
        for session_pk in sessions:
            done = 0
            for done in rebuild_session(session_pk):
                self._show(turns + done)
            turns += done
        if check_index():
            self.stdout.write("The index does not fit the entries; writes wait while it is mended.")
            mend_index()
        self.stdout.write(f"{len(sessions)} sessions, {turns} turns indexed anew")
        return 0

    def _check(self, only: int | None) -> int:
        problems = 0
        sessions = sessions_in_order(only)
        for session_pk in sessions:
            problem = check_session(session_pk)
            if problem:
                problems += 1
                self.stdout.write(f"session {session_pk}: {problem}")
        problem = check_index()
        if problem:
            self.stdout.write(problem)
        count = problems + bool(problem)
        verdict = f"{count} wrong; rebuild_index mends it" if count else "all as it should be"
        self.stdout.write(f"{len(sessions)} sessions: {verdict}")
        return count

    def _show(self, turns: int) -> None:
        if sys.stderr.isatty() and turns % PROGRESS_TURNS < 100:
            sys.stderr.write(f"\r{turns} turns ")
            sys.stderr.flush()
