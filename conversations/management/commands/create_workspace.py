from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings

from conversations.archive.workspaces import create_workspace, find_user, resolve_root
from conversations.management.base import DatabaseCommand

from ._first_run import make_first_user


class Command(DatabaseCommand):
    help = "Create a workspace on an existing folder; print its slug and its page."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("path", metavar="PATH", help="A folder under LOOM_WORKSPACE_ROOTS.")
        parser.add_argument("--name", default="", help="Default: the folder's name.")
        parser.add_argument("--owner", metavar="USERNAME", help="Default: the first administrator.")

    def handle(self, *, path: str, name: str, owner: str | None, **_: Any) -> None:
        person = find_user(owner) if owner is not None else make_first_user()
        root = resolve_root(
            str(Path(path).expanduser().absolute()),
            roots=settings.LOOM.workspace_roots,
            data_dir=settings.LOOM.data_dir,
        )
        workspace = create_workspace(root=root, name=name, owner=person)
        self.stdout.write(f"{workspace.slug}\n/w/{workspace.slug}/")
