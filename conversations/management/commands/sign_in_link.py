from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import CommandError
from django.urls import reverse

from conversations.archive.workspaces import create_sign_in_link
from conversations.management.base import DatabaseCommand


class Command(DatabaseCommand):
    help = "Print a link that signs a person in, once, within twelve hours."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username", nargs="?", help="Whom; the first administrator if absent.")
        parser.add_argument("--address", help="Where the server is reached, such as https://chat.")

    def handle(self, *, username: str | None, address: str | None, **_: Any) -> None:
        people = User.objects.filter(is_active=True).order_by("pk")
        people = people.filter(username=username) if username else people.filter(is_superuser=True)
        user = people.first()
        if user is None:
            raise CommandError(f"There is no account {username!r}." if username else "No account.")
        base = address or f"http://{settings.LOOM.host}:{settings.LOOM.port}"
        path = reverse("sign_in_link", args=[create_sign_in_link(user)])
        self.stdout.write(base.rstrip("/") + path)
