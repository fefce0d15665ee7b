"""A server in a process of its own, on a copy of the test's data (SQLite)."""

import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from django.db import connection

from benchmarks.processes import Server, free_port
from conversations.management.commands._first_run import _static_digest
from tests.wire.server import WireThread


@contextmanager
def serve_copy(
    folder: Path,
    wire: WireThread,
    *,
    popen: Callable[..., Any] = subprocess.Popen,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """It asks the model that the test plays. ``popen`` makes its processes."""
    folder.mkdir()
    connection.ensure_connection()
    with closing(sqlite3.connect(folder / "loom.sqlite3")) as copy:
        connection.connection.backup(copy)
    (folder / "static").mkdir()
    (folder / "static" / ".stamp").write_text(_static_digest())  # nobody asks for a page
    model = {"ANTHROPIC_API_KEY": wire.key, "ANTHROPIC_BASE_URL": wire.url}
    model["LOOM_TITLE_MODEL"] = "off"  # a test counts what the model is asked
    server = Server(
        data_dir=folder,
        port=free_port(),
        settings=model | dict(settings or {}),
        arguments=("--no-prepare",),
        popen=popen,
    )
    try:
        server.start()
        yield server
    finally:
        server.stop()
