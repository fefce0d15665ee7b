"""Preparation at the first start: a user, a workspace on an example folder, static files."""

import hashlib
import json
from getpass import getuser
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.staticfiles.finders import get_finders
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.management import call_command

from conversations.archive.workspaces import (
    create_first_superuser,
    create_workspace,
    has_workspaces,
)

EXAMPLE_SLUG = "example"

EXAMPLE_FILES = {
    "README.md": "# Example\n\nA small folder to try things out in. Nothing in it matters.\n",
    "greet.py": (
        'def greet(name: str) -> str:\n    return f"Hello, {name}"\n\n\n'
        'if __name__ == "__main__":\n    print(greet("Loom"))\n'
    ),
    "notes.txt": "Things to ask: what is here, what could be better, how would a test look.\n",
}


def make_first_user() -> User:
    """Return the administrator who runs the server, and create the account if there is none.

    The administrator signs in by link until they choose a password."""
    found = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
    if found is not None:
        return found
    try:
        name = getuser()
    except (OSError, KeyError):  # A container without a user database.
        name = "owner"
    return create_first_superuser(name)


def make_first_workspace(owner: User) -> None:
    if has_workspaces():
        return
    root = settings.LOOM.data_dir / "workspaces" / EXAMPLE_SLUG
    root.mkdir(parents=True, exist_ok=True)
    for name, text in EXAMPLE_FILES.items():
        if not (root / name).exists():
            (root / name).write_text(text)
    create_workspace(root=root, name="Example", slug=EXAMPLE_SLUG, owner=owner)


def _stamp() -> Path:
    return Path(settings.STATIC_ROOT) / ".stamp"


def is_first_start() -> bool:
    return not _stamp().exists()


def collect_static_files() -> None:
    """Hash and compress the static files, unless they have not changed.

    The previous files stay under their hashed names, for a server that still runs."""
    stamp = _stamp()
    digest = _static_digest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    _remove_what_no_page_names()
    # ReDoc comes with the API's framework, and no page uses it.
    call_command("collectstatic", verbosity=0, interactive=False, ignore_patterns=["redoc*"])
    stamp.write_text(digest)


def _remove_what_no_page_names() -> None:
    """Remove the files that no page refers to, the unhashed originals included.

    An original that is newer than its source would not be copied again."""
    served = set(staticfiles_storage.hashed_files.values())  # type: ignore[attr-defined]
    for path in Path(settings.STATIC_ROOT).rglob("*"):
        name = path.relative_to(settings.STATIC_ROOT).as_posix()
        if path.is_file() and name.removesuffix(".gz").removesuffix(".br") not in served:
            path.unlink()


def _static_digest() -> str:
    files = []
    for finder in get_finders():
        for name, storage in finder.list([]):
            status = Path(storage.path(name)).stat()
            files.append((name, status.st_size, status.st_mtime_ns))
    return hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()
