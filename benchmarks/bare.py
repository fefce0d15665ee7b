"""The minimum cost of a page and a start: a single view that reads rows and returns them.

``python -m benchmarks.bare PORT DATABASE`` serves it with Daphne and Django, without middleware
or apps. The table ``piece`` of the database holds HTML by number. ``/?limit=250`` returns the
newest 250 pieces.
"""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.urls import path

from .pages import PageReader
from .processes import ROOT, clean_environment, free_port, wait_for_page


def newest(request: HttpRequest) -> HttpResponse:
    with connection.cursor() as cursor:
        limit = int(request.GET.get("limit", 1))
        cursor.execute("SELECT html FROM piece ORDER BY number DESC LIMIT %s", [limit])
        return HttpResponse("".join(html for (html,) in cursor.fetchall()))


urlpatterns = [path("", newest)]


def write_pieces(database: Path, html: str, *, on_page: int, count: int) -> None:
    """Write ``count`` rows, such that any ``on_page`` neighbouring ones hold the page's HTML."""
    database.unlink(missing_ok=True)
    size = -(-len(html) // on_page)
    pieces = [html[at : at + size] for at in range(0, len(html), size)]
    rows = ((number, pieces[number % len(pieces)]) for number in range(count))
    with sqlite3.connect(database) as store:
        store.execute("CREATE TABLE piece (number INTEGER PRIMARY KEY, html TEXT)")
        store.executemany("INSERT INTO piece VALUES (?, ?)", rows)
    store.close()


@dataclass(frozen=True, slots=True)
class Bare:
    """A running server. ``seconds`` is the time from its start to its first page."""

    pid: int
    port: int
    seconds: float


@contextmanager
def running_bare(database: Path) -> Iterator[Bare]:
    port, began = free_port(), monotonic()
    process = subprocess.Popen(  # noqa: S603 (our own)
        [sys.executable, "-m", "benchmarks.bare", str(port), str(database)],
        cwd=ROOT,
        env=clean_environment({}),
    )
    try:
        yield Bare(process.pid, port, wait_for_page(port, "/", since=began))
    finally:
        process.terminate()
        process.wait()


@contextmanager
def reading_bare(database: Path) -> Iterator[PageReader]:
    with running_bare(database) as bare:
        reader = PageReader(port=bare.port, cookie="")
        yield reader
        reader.close()


def main() -> None:
    port, database = sys.argv[1:]
    settings.configure(
        ALLOWED_HOSTS=["127.0.0.1"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": database}},
        ROOT_URLCONF="benchmarks.bare",
        SECRET_KEY="bare",  # noqa: S106 (it signs nothing)
    )
    from daphne.server import Server
    from django.core.asgi import get_asgi_application

    endpoint = f"tcp:port={port}:interface=127.0.0.1"
    Server(get_asgi_application(), endpoints=[endpoint]).run()


if __name__ == "__main__":
    main()
