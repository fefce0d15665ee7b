import re
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import CommandError
from django.urls import reverse

from conversations.archive.workspaces import create_sign_in_link, find_user
from conversations.management.base import DatabaseCommand, refuse_empty


class Command(DatabaseCommand):
    help = "Print a one-time link that signs a person in, valid for twelve hours."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username", nargs="?", help="Default: the first administrator.")
        parser.add_argument(
            "--address", help="The external address of the server, such as https://chat."
        )

    def handle(self, *, username: str | None, address: str | None, **_: Any) -> None:
        refuse_empty(address=address)
        if address and not re.match(r"https?://[^/?#\s]", address):
            raise CommandError(
                "--address must begin with https:// or http:// and a host.", returncode=2
            )
        people = User.objects.filter(is_active=True, is_superuser=True).order_by("pk")
        user = find_user(username) if username is not None else people.first()
        if user is None:
            raise CommandError("There is no account yet.")
        base = address or settings.LOOM.site
        path = reverse("sign_in_link", args=[create_sign_in_link(user)])
        self.stdout.write(base.rstrip("/") + path)
