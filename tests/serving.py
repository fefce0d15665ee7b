"""A server in a process of its own, with a copy of the test's SQLite database."""

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
    """Run a server whose provider is ``wire``. ``popen`` starts its processes."""
    folder.mkdir()
    connection.ensure_connection()
    with closing(sqlite3.connect(folder / "loom.sqlite3")) as copy:
        connection.connection.backup(copy)
    (folder / "static").mkdir()
    (folder / "static" / ".stamp").write_text(_static_digest())  # no test requests static files
    model = {"ANTHROPIC_API_KEY": wire.key, "ANTHROPIC_BASE_URL": wire.url}
    model["LOOM_TITLE_MODEL"] = "off"  # tests count the model calls
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
