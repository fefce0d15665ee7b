"""A server of one's own for requests over the wire: ``manage.py serve``, with a token."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.conftest import Server


class LiveServer(Server):
    """``token`` is one of the first user, with all scopes."""

    token = ""

    def use(self) -> None:
        """Start, and make a token."""
        self.start()
        name = self.manage("shell", "-v", "0", "-c", FIRST_USER).strip()
        scopes = [f"--scope={one}" for one in ("read", "write", "approve", "delete", "hooks")]
        self.token = self.manage("create_token", name, "--name=tests", *scopes).strip()


FIRST_USER = """
from django.contrib.auth.models import User
print(User.objects.get().username)
"""


@contextmanager
def live_server(folder: Path, **environment: str) -> Iterator[LiveServer]:
    server = LiveServer(
        folder, {"LOOM_API_RATE": "100000/second", "LOOM_DEMO_DELAY": "0", **environment}
    )
    server.environment.pop("ANTHROPIC_API_KEY", None)
    try:
        server.use()
        yield server
    finally:
        server.stop()
