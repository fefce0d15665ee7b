import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError
from django.db import DatabaseError, connection

from conversations.agent.window.manifest import find_damaged_calls
from conversations.archive.audit import verify_audit
from conversations.archive.sessions import get_session
from conversations.archive.verify import check_database_file, verify_sessions
from conversations.feature import features
from conversations.management.base import DatabaseCommand
from conversations.models.guards import missing_guards

PROGRESS_SESSIONS = 20


class Command(DatabaseCommand):
    help = (
        "Verify every turn, event and audit entry against its hash chain, the markers, the "
        "receipts of purges, the triggers that protect the archive, and the database file."
    )
    # This command checks the guards itself. A missing guard is a finding, not a reason to stop.
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--session", type=UUID, metavar="UUID", help="Only this session.")
        parser.add_argument(
            "--windows",
            action="store_true",
            help="Also rebuild every request to the model and compare its digest.",
        )

    def handle(self, *, session: UUID | None, windows: bool, **_: Any) -> None:
        try:
            problems = self._check_database(check_file=session is None)
            if session is not None:
                get_session(session)
            problems += self._check_sessions(session)
            problems += self._check_others() if session is None else 0
            problems += self._check_windows(session) if windows else 0
        except DatabaseError as error:
            raise CommandError(f"The database cannot be read: {error}") from error
        if problems:
            sys.exit(1)

    def _check_database(self, *, check_file: bool) -> int:
        missing = missing_guards(connection)
        found = [f"the trigger {name} is missing; migrate restores it" for name in missing]
        damage = check_database_file() if check_file else ""
        if damage:
            found.append(f"the database file is damaged: {damage}")
        return self._print_problems(found)

    def _check_sessions(self, session: UUID | None) -> int:
        is_watched = sys.stderr.isatty()
        sessions = turns = events = damaged = 0
        for verified in verify_sessions(session=session):
            sessions += 1
            turns += verified.turns
            events += verified.events
            if verified.problem:
                damaged += 1
                self.stdout.write(f"{verified.session}: {verified.problem}")
            if is_watched and sessions % PROGRESS_SESSIONS == 0:
                sys.stderr.write(f"\r{sessions} sessions ")
                sys.stderr.flush()
        self.stdout.write(
            f"{sessions} sessions, {turns} turns, {events} events: "
            + (f"{damaged} damaged" if damaged else "all intact")
        )
        return damaged

    def _check_others(self) -> int:
        entries, problem = verify_audit()
        whole = f"{entries} audit entries: all intact" if entries else ""
        count = self._print_problems([problem] if problem else [], whole)
        return count + sum(self._print_problems(*feature.verify()) for feature in features())

    def _print_problems(self, problems: Sequence[str], all_is_well: str = "") -> int:
        for line in problems or [all_is_well]:
            if line:
                self.stdout.write(line)
        return len(problems)

    def _check_windows(self, session: UUID | None) -> int:
        damaged = 0
        for uuid, call_pk, reason in find_damaged_calls(session):
            damaged += 1
            self.stdout.write(f"{uuid}: model call {call_pk}: {reason}")
        self.stdout.write(
            f"requests to the model: {damaged} damaged"
            if damaged
            else "requests to the model: all rebuilt identically"
        )
        return damaged
