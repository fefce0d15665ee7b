import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from conversations.archive.sessions import find_session
from conversations.management.base import DatabaseCommand
from conversations.search import meaning
from conversations.search.rebuild import (
    check_index,
    check_session,
    rebuild_session,
    repair_index,
    sessions_in_order,
)

PROGRESS_TURNS = 1000


class Command(DatabaseCommand):
    help = "Rebuild the search index while the server runs, or check it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--session", metavar="UUID", help="Only this session.")
        parser.add_argument("--check", action="store_true", help="Compare only, change nothing.")

    def handle(self, *, session: str | None, check: bool, **_: Any) -> None:
        only = find_session(session).pk if session is not None else None
        try:
            if not check:
                self._rebuild(only)
            elif self._check(only):
                sys.exit(1)
        except KeyboardInterrupt:
            raise CommandError("Stopped; run it again to finish.", returncode=130) from None

    def _rebuild(self, only: int | None) -> None:
        sessions, turns = sessions_in_order(only), 0
        for session_pk in sessions:
            done = 0
            for done in rebuild_session(session_pk):
                if sys.stderr.isatty() and (turns + done) % PROGRESS_TURNS < 100:
                    sys.stderr.write(f"\r{turns + done} turns ")
                    sys.stderr.flush()
            turns += done
        if check_index():
            self.stdout.write(
                "The index does not match the entries; writes wait while it is repaired."
            )
            repair_index()
        self.stdout.write(f"{len(sessions)} sessions, {turns} turns reindexed")
        if meaning.is_used():
            self.stdout.write(f"{meaning.embed_waiting(only)} vectors made")

    def _check(self, only: int | None) -> int:
        sessions = sessions_in_order(only)
        found = [(pk, check_session(pk) or meaning.check_session(pk)) for pk in sessions]
        problems = [f"session {pk}: {problem}" for pk, problem in found if problem]
        if problem := check_index():
            problems.append(problem)
        for problem in problems:
            self.stdout.write(problem)
        count = len(problems)
        verdict = f"{count} wrong; run rebuild_index to repair" if count else "all correct"
        self.stdout.write(f"{len(sessions)} sessions: {verdict}")
        return count
