from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.db import transaction

from conversations.accounts.tokens import READ, SCOPES, WRITE, create_token
from conversations.archive.workspaces import find_user
from conversations.management.base import DatabaseCommand


class Command(DatabaseCommand):
    help = "Create a token for a person and print it. It cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username", metavar="USER")
        parser.add_argument("--name", required=True, help="A label, only shown to the person.")
        parser.add_argument(
            "--scope",
            action="append",
            choices=list(SCOPES),
            dest="scopes",
            help="What the token allows; can be repeated. Default: read and write.",
        )
        parser.add_argument(
            "--days",
            type=int,
            metavar="N",
            help="Lifetime in days. Default and maximum: LOOM_TOKEN_DAYS.",
        )

    def handle(
        self, *, username: str, name: str, scopes: list[str] | None, days: int | None, **_: Any
    ) -> None:
        most = settings.LOOM.token_days
        if days is None:
            days = most
        elif not 1 <= days <= (most or 36_500):
            raise CommandError(f"--days must be between 1 and {most or 36_500}.", returncode=2)
        # A token that could not be printed must not stay valid.
        with transaction.atomic():
            token = create_token(
                find_user(username),
                name=name,
                scopes=scopes or (READ, WRITE),
                lifetime=timedelta(days=days) if days else None,
            )
            self.stdout.write(token)
            self.stdout.flush()
