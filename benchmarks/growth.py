"""Measure the growth of costs with an installation: ``python -m benchmarks.growth FOLDER``

Builds an installation for each number of turns in FOLDER, unless it exists, and checks it with
``verify_archive``. Then prints a Markdown table of the times that a person and the model wait in
each installation, and how they grow from one to the next. Ten million turns need about half an
hour and 20 GB; use ``--turns 1_000_000,10_000_000`` for them.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from .figures import Figure, median, number_text, percentile
from .machine import resident_megabytes
from .pages import PageReader, Unexpected
from .processes import ROOT, clean_environment, running_server

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from conversations.models import Session

USUAL_SIZES = "10_000,100_000,1_000_000"
PEOPLE, TURNS_PER_SESSION = 200, 50
MAX_WRITTEN_TURNS = 1_000_000  # larger installations repeat these turns
MAX_SESSION_TURNS = 100_000  # the longest session has a tenth of all turns up to this limit
BUILT = "built.json"  # exists in a folder that is complete
ROUNDS, SEARCHES = 30, 12


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--turns", default=USUAL_SIZES, metavar="N,…", help=USUAL_SIZES)
    parser.add_argument("--build", action="store_true", help="build only, measure nothing")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    sizes = [int(text) for text in options.turns.split(",")]
    if options.one:
        [turns] = sizes
        measure_one(options.folder, turns, is_measured=not options.build)
        return
    found = []
    for turns in sizes:  # each in its own process, because a process uses one database
        command = [sys.executable, "-m", "benchmarks.growth", str(options.folder.resolve())]
        command += ["--one", "--turns", str(turns), *(["--build"] if options.build else [])]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 (our own)
        found.append([Figure(**row) for row in json.loads(done.stdout.splitlines()[-1])])
    print(growth_table(sizes, found))


def growth_table(sizes: Sequence[int], found: Sequence[Sequence[Figure]]) -> str:
    """Return a table with a line per figure, with the growth factor from one size to the next."""
    heads = [f"{size:,} turns" for size in sizes]
    lines = [f"| | unit | {' | '.join(heads)} |", "| --- | --- " + "| ---: " * len(sizes) + "|"]
    for row in zip(*found, strict=True):
        cells = [number_text(row[0].value)]
        for before, after in pairwise(row):
            growth = f" (×{number_text(after.value / before.value)})" if before.value else ""
            cells.append(number_text(after.value) + growth)
        lines.append(f"| {row[0].name} | {row[0].unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def measure_one(folder: Path, turns: int, *, is_measured: bool) -> None:
    """Print the figures of one installation as JSON."""
    data_dir = folder / f"{turns}"
    data_dir.mkdir(parents=True, exist_ok=True)
    environment = clean_environment({"LOOM_DATA_DIR": str(data_dir)})
    os.environ.clear()
    os.environ.update(environment, DJANGO_SETTINGS_MODULE="loomweb.settings")
    if not (data_dir / BUILT).exists():
        (data_dir / "loom.sqlite3").unlink(missing_ok=True)
        with running_server(data_dir):  # the first start prepares the folder
            pass
    import django

    django.setup()
    if not (data_dir / BUILT).exists():
        build(data_dir, turns)
    figures = [Figure(**row) for row in json.loads((data_dir / BUILT).read_text())]
    if is_measured:
        figures += measure(data_dir)
    rows = [{"name": f.name, "value": f.value, "unit": f.unit} for f in figures]
    print(json.dumps(rows))


def build(data_dir: Path, turns: int) -> None:
    from django.core.management import call_command
    from django.db import connection

    from .installation import Size, repeat_installation, write_installation

    written = min(turns, MAX_WRITTEN_TURNS)
    began = perf_counter()
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA synchronous=OFF")  # an incomplete installation is built again
    write_installation(
        Size(
            people=PEOPLE,
            sessions=written // TURNS_PER_SESSION,
            turns=written,
            longest=min(written // 10, MAX_SESSION_TURNS),
        )
    )
    repeat_installation(turns // written - 1)
    with connection.cursor() as cursor:
        for statement in _CALLS:
            cursor.execute(statement)
    call_command("rebuild_usage")
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        cursor.execute("SELECT SUM(LENGTH(CAST(content AS BLOB))) FROM conversations_turn")
        [(text,)] = cursor.fetchall()
    built = perf_counter() - began
    call_command("verify_archive", stdout=sys.stderr)
    disk = (data_dir / "loom.sqlite3").stat().st_size
    figures = [
        Figure(name="Built", value=turns / built, unit="turns/s"),
        Figure(name="Disk, by bytes of text", value=disk / text),
    ]
    rows = [{"name": f.name, "value": f.value, "unit": f.unit} for f in figures]
    (data_dir / BUILT).write_text(json.dumps(rows))


# Insert a run for each message and a model call for each answer, from which usage is computed.
_CALLS = (
    "INSERT INTO conversations_run (uuid, session_id, client_id, state, user_turn, requested_by_id,"
    " created_at, started_at, finished_at)"
    " SELECT LOWER(HEX(RANDOMBLOB(16))), session_id, 'turn-' || number, 'completed', number,"
    " owner_id, t.created_at, t.created_at, t.created_at"
    " FROM conversations_turn t JOIN conversations_session s ON s.id = t.session_id"
    " WHERE t.role = 'user'",
    "INSERT INTO conversations_modelcall (session_id, run_id, ordinal, model, manifest,"
    " request_digest, turn_number, stop_reason, input_tokens, output_tokens, cache_read_tokens,"
    " cost_microusd, first_token_ms, duration_ms, created_at)"
    " SELECT t.session_id, r.id, t.number - r.user_turn, JSON_EXTRACT(t.metadata, '$.model'), '{}',"
    " '', t.number, 'end_turn', 800, LENGTH(t.content) / 4, 20000, 9000, 700, 4000, t.created_at"
    " FROM conversations_run r JOIN conversations_turn t ON t.session_id = r.session_id"
    " AND t.number IN (r.user_turn + 1, r.user_turn + 3)",
)


def measure(data_dir: Path) -> list[Figure]:
    """Measure the waits of the longest session's owner, of the model in it, and of a superuser.

    The superuser sees everything. The appends that are measured lengthen the session.
    """
    from django.contrib.auth.models import User
    from django.test import Client

    from conversations.models import Session

    logging.getLogger("conversations").setLevel(logging.WARNING)
    longest = Session.objects.select_related("owner").order_by("-next_turn", "pk")[0]

    def reader(user: "User") -> Callable[[str], None]:
        client = Client(SERVER_NAME="localhost")
        client.force_login(user, "django.contrib.auth.backends.ModelBackend")

        def read(address: str) -> None:
            is_part = {"HX-Request": "true"} if "before=" in address else {}
            if client.get(address, headers=is_part).status_code != HTTPStatus.OK:
                raise Unexpected(address)

        return read

    read = reader(longest.owner)
    read_all = reader(User.objects.filter(is_superuser=True).order_by("pk")[0])
    at, middle = f"/s/{longest.uuid}/", longest.turn_count // 2
    first, last = longest.created_at.date(), longest.last_active_at.date()
    month = f"/usage/?first={last - timedelta(days=29)}&last={last}"
    year = f"/usage/?first={first - timedelta(days=364)}&last={first}"
    return [
        Figure(name="Turns of the longest session", value=longest.turn_count),
        Figure(name="Sessions", value=Session.objects.count()),
        *_times("Its newest page", lambda: read(at)),
        *_times("The page from its middle", lambda: read(f"{at}?before=turn:{middle}")),
        *_times("List of the workspace", lambda: read(f"/w/{longest.workspace.slug}/")),
        *_work(longest),
        *_searches(longest, read, read_all),
        *_times("Usage of 30 days, all", lambda: read_all(month)),
        *_times("Usage of a year, all", lambda: read_all(year), rounds=10),
        *_times("Usage of the session", lambda: read(f"{at}usage/")),
        *_server(data_dir),
    ]


def _times(name: str, work: Callable[[], object], *, rounds: int = ROUNDS) -> list[Figure]:
    work()
    times = []
    for _ in range(rounds):
        began = perf_counter()
        work()
        times.append(1000 * (perf_counter() - began))
    return [
        Figure(name=f"{name}, median", value=median(times), unit="ms"),
        Figure(name=f"{name}, p95", value=percentile(times, 0.95), unit="ms"),
    ]


def _work(session: "Session") -> list[Figure]:
    from conversations.archive.append import NewEvent, append, prepare_event
    from conversations.archive.sessions import save_floor
    from conversations.domain.events import AssistantText
    from conversations.domain.turns import NewTurn
    from conversations.runtime.options import read_options

    from .groups.window import assemble

    text = "The roses by the wall are dry, those by the pond are not."
    turn = NewTurn(role="assistant", content=text)
    new = NewEvent(payload=AssistantText(text=text), new=0)
    event = prepare_event(new, session_uuid=session.uuid)
    options = read_options(supervise=False)
    save_floor(session.pk, floor=assemble(session.pk, options).floor)

    def append_one() -> None:
        append(session.pk, session_uuid=session.uuid, turns=[turn], events=[event])

    return [
        *_times("Append of a turn and a row", append_one),
        *_times("Assembling the window", lambda: assemble(session.pk, options)),
    ]


def _searches(
    session: "Session", read: Callable[[str], None], read_all: Callable[[str], None]
) -> Iterator[Figure]:
    from .groups.search import make_queries
    from .look_back import asking, call_recall

    random = Random(3)
    kinds = {name: make for name, make in make_queries(random).items() if name != "a phrase"}
    places = {
        "Search in the session": lambda asked: read(f"/s/{session.uuid}/find/?{asked}"),
        "Search in a person's sessions": lambda asked: read(f"/search/?{asked}"),
        "Search in all": lambda asked: read_all(f"/review/search/?{asked}"),
    }
    for place, look in places.items():
        for kind, make in kinds.items():
            yield from _times(
                f"{place}, {kind}",
                lambda look=look, make=make: look(urlencode({"q": make()})),  # type: ignore[misc]
                rounds=SEARCHES,
            )
    make = kinds["a question"]
    with asking(session.pk, make()) as context:
        yield from _times(
            "Recall by the model, a question",
            lambda: call_recall(context, {"action": "search", "query": make()}),
        )


def _server(data_dir: Path) -> list[Figure]:
    with running_server(data_dir):  # the first start after an update collects static files
        pass
    with running_server(data_dir) as server:
        seconds = server.wait_for_page()
        reader = PageReader(port=server.port, cookie=server.sign_in())
        for _ in range(ROUNDS):
            reader.read("/search/?q=roses")
        reader.close()
        memory = resident_megabytes(server.pid)
    return [
        Figure(name="Start to the first page", value=seconds, unit="s"),
        Figure(name=f"Memory after {ROUNDS} searches", value=memory, unit="MB"),
    ]


if __name__ == "__main__":
    main()
