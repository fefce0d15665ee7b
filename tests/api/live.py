"""A server of one's own for requests over the wire: ``manage.py serve``, with a token."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copy

from tests.e2e.conftest import Server


class LiveServer(Server):
    """``token`` is one of the first user, with all scopes."""

    token = ""

    def use(self) -> None:
        """Start, and make a token."""
        self.start()
        self.token = self.manage("shell", "-v", "0", "-c", MAKE_TOKEN).strip()


MAKE_TOKEN = """
from django.contrib.auth.models import User
from conversations.accounts.tokens import create_token
from conversations.accounts.tokens import SCOPES
print(create_token(User.objects.get(), name="tests", scopes=SCOPES, lifetime=None))
"""


@contextmanager
def live_server(folder: Path, database: Path, **environment: str) -> Iterator[LiveServer]:
    """One that answers by the demo model, without pauses, and counts no requests.
    ``database`` is a migrated one to begin with."""
    copy(database, folder)
    server = LiveServer(
        folder, {"LOOM_API_RATE": "100000/second", "LOOM_DEMO_DELAY": "0", **environment}
    )
    server.environment.pop("ANTHROPIC_API_KEY", None)
    try:
        server.use()
        yield server
    finally:
        server.stop()
