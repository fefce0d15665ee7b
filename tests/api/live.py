"""A running ``manage.py serve`` with a token, for requests over the wire."""

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shutil import copy

from benchmarks.processes import Server, free_port
from conversations.accounts.tokens import PREFIX, SCOPES
from conversations.archive.workspaces import digest_of
from tests.starting import Starts

ADD_TOKEN = """
INSERT INTO conversations_apitoken (digest, hint, user_id, name, scopes, created_at)
SELECT ?, 'loom_', id, 'tests', ?, ? FROM auth_user
"""


@dataclass(frozen=True, slots=True)
class LiveServer:
    """A running server. ``token`` belongs to its only user and has all scopes."""

    url: str
    token: str


def add_token(database: Path) -> str:
    """Insert a token by SQL, because a command would start Django once more."""
    token = PREFIX + secrets.token_urlsafe(32)
    row = (digest_of(token), " ".join(SCOPES), datetime.now(UTC).isoformat(" "))
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(ADD_TOKEN, row)
    return token


@contextmanager
def live_server(folder: Path, database: Path, starts: Starts) -> Iterator[LiveServer]:
    """Run a server on a copy of ``database``, which is a migrated one.

    The demo model answers without pauses. The rate limit is too high to be reached.
    """
    copy(database, folder)
    server = Server(
        data_dir=folder,
        port=free_port(),
        settings={"LOOM_API_RATE": "100000/second", "LOOM_DEMO_DELAY": "0"},
        arguments=("--no-prepare",),
        popen=starts.popen,
    )
    try:
        server.start()
        token = add_token(folder / "loom.sqlite3")
        yield LiveServer(url=f"http://127.0.0.1:{server.port}", token=token)
    finally:
        server.stop()
