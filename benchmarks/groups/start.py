"""The time from ``manage.py serve`` to the first page and word, and the cost of an idle server.

The limit is Daphne with a single Django view.
"""

import asyncio
import shutil
from pathlib import Path
from tempfile import mkdtemp
from time import sleep

from benchmarks.bare import running_bare, write_pieces
from benchmarks.bench import Bench
from benchmarks.figures import Figure, median
from benchmarks.groups.first_token import added, converse
from benchmarks.machine import cpu_seconds, resident_megabytes
from benchmarks.pages import PageReader, PageSocket
from benchmarks.processes import Wire, running_server, running_wire

STARTS, QUICK_STARTS = 3, 1
IDLE_SECONDS = 4.0
WATCHED_SECONDS = 15.0


def measure(bench: Bench) -> list[Figure]:
    count = QUICK_STARTS if bench.is_quick else STARTS
    folder = Path(mkdtemp(prefix="start-", dir=bench.data_dir))
    with running_server(folder) as server:
        first = server.wait_for_page()
    shutil.rmtree(folder)
    with running_wire() as wire:
        waited = [_start(bench, wire, idle=IDLE_SECONDS) for _ in range(count)]
        at_once = [_start(bench, wire, idle=0) for _ in range(count)]
        idle = _wait_with_a_page(bench, wire)
    bare = [_start_bare(bench) for _ in range(count)]
    seconds = median([page for page, _, _ in waited + at_once])
    return [
        Figure(
            name="start to the first page",
            value=seconds,
            unit="s",
            at_most=1.0,
            limit=median([page for page, _ in bare]),
        ),
        Figure(
            name="idle memory",
            value=median([memory for _, memory, _ in waited]),
            unit="MB",
            at_most=95,
            limit=median([memory for _, memory in bare]),
        ),
        Figure(
            name="processor time of a second, with an open page and nothing to do",
            value=1000 * idle / WATCHED_SECONDS,
            unit="ms",
            at_most=15,
        ),
        Figure(
            name=f"first word of a message {IDLE_SECONDS:.0f} s after the first page",
            value=median([word for _, _, word in waited]),
            unit="s",
            at_most=0.3,
        ),
        Figure(
            name="first word of a message right after the first page",
            value=median([word for _, _, word in at_once]),
            unit="s",
        ),
        Figure(name="very first start", value=first, unit="s"),
    ]


def _start(bench: Bench, wire: Wire, *, idle: float) -> tuple[float, float, float]:
    """Start a server and measure it.

    Return the seconds to the first page, the megabytes after ``idle`` seconds, and the seconds that
    the server then added to the first word of a message.
    """
    [session] = bench.new_sessions(1)
    with running_server(bench.data_dir, settings=wire.settings) as server:
        seconds = server.wait_for_page()
        sleep(idle)
        memory = resident_megabytes(server.pid)
        cookie = server.sign_in()
        reader = PageReader(port=server.port, cookie=cookie)
        reader.read(f"/s/{session}/")
        reader.close()
        moments = asyncio.run(converse(server.port, cookie, [session], 1))
    [word] = added(moments, wire)
    return seconds, memory, word


def _wait_with_a_page(bench: Bench, wire: Wire) -> float:
    """Return the processor seconds of a server with an open page and nothing to do."""
    [session] = bench.new_sessions(1)
    with running_server(bench.data_dir, settings=wire.settings) as server:
        server.wait_for_page()
        page = PageSocket(port=server.port, cookie=server.sign_in(), session=session)

        async def wait() -> float:
            await page.open()
            await asyncio.sleep(IDLE_SECONDS)
            began = cpu_seconds(server.pid)
            await asyncio.sleep(WATCHED_SECONDS)
            used = cpu_seconds(server.pid) - began
            await page.close()
            return used

        return asyncio.run(wait())


def _start_bare(bench: Bench) -> tuple[float, float]:
    database = bench.data_dir / "bare.sqlite3"
    write_pieces(database, "<p>Hello</p>", on_page=1, count=1)
    with running_bare(database) as bare:
        sleep(IDLE_SECONDS)
        return bare.seconds, resident_megabytes(bare.pid)
