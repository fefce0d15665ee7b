"""A server of one's own for requests over the wire: ``manage.py serve``, with a token."""

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from shutil import copy

from conversations.accounts.tokens import PREFIX, SCOPES
from conversations.archive.workspaces import digest_of
from tests.e2e.conftest import Server
from tests.starting import Starts

ADD_TOKEN = """
INSERT INTO conversations_apitoken (digest, hint, user_id, name, scopes, created_at)
SELECT ?, 'loom_', id, 'tests', ?, ? FROM auth_user
"""


class LiveServer(Server):
    """``token`` is one of the only user, with all scopes."""

    token = ""

    def use(self) -> None:
        """Start, and make a token, for which a command would start Django once more."""
        self.start()
        self.token = PREFIX + secrets.token_urlsafe(32)
        row = (digest_of(self.token), " ".join(SCOPES), datetime.now(UTC).isoformat(" "))
        with closing(sqlite3.connect(self.folder / "loom.sqlite3")) as database, database:
            database.execute(ADD_TOKEN, row)


@contextmanager
def live_server(
    folder: Path, database: Path, starts: Starts, **environment: str
) -> Iterator[LiveServer]:
    """One that answers by the demo model, without pauses, and counts no requests.
    ``database`` is a migrated one to begin with."""
    copy(database, folder)
    server = LiveServer(
        folder, {"LOOM_API_RATE": "100000/second", "LOOM_DEMO_DELAY": "0", **environment}, starts
    )
    server.environment.pop("ANTHROPIC_API_KEY", None)
    try:
        server.use()
        yield server
    finally:
        server.stop()
