from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from conversations.accounts.people import remove_second_factors
from conversations.archive.audit import AuditOrigin
from conversations.archive.workspaces import find_user
from conversations.management.base import DatabaseCommand


class Command(DatabaseCommand):
    help = "Remove a person's second factor and recovery codes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username")

    def handle(self, *, username: str, **_: Any) -> None:
        user = find_user(username, even_closed=True)
        if settings.LOOM.two_factor == "off":
            raise CommandError("Two-factor authentication is off: see LOOM_TWO_FACTOR.")
        if not remove_second_factors(user, origin=AuditOrigin(name="reset_two_factor")):
            raise CommandError(f"{username} has no second factor.")
        self.stdout.write(f"The second factor of {username} is removed.")
