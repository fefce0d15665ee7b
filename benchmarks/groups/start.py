"""From ``make run`` to the first page, and the memory of a server that waits."""

import shutil
from pathlib import Path
from tempfile import mkdtemp
from time import sleep

from benchmarks.bench import Bench
from benchmarks.figures import Figure, median
from benchmarks.machine import resident_megabytes
from benchmarks.processes import running_server
from benchmarks.wire import KEY

STARTS, QUICK_STARTS = 3, 1
IDLE_SECONDS = 4.0
KEYS = {"without a key": {}, "with a key": {"ANTHROPIC_API_KEY": KEY}}


def measure(bench: Bench) -> list[Figure]:
    figures: list[Figure] = []
    for label, settings in KEYS.items():
        folder = Path(mkdtemp(prefix="start-", dir=bench.data_dir))
        first, _ = _start(folder, settings, idle=0)
        count = QUICK_STARTS if bench.is_quick else STARTS
        again = [_start(folder, settings, idle=IDLE_SECONDS) for _ in range(count)]
        seconds, memory = median([s for s, _ in again]), median([m for _, m in again])
        figures += [
            Figure(name=f"to the first page, {label}", value=seconds, unit="s", at_most=5),
            Figure(name=f"memory, idle, {label}", value=memory, unit="MB", at_most=150),
            Figure(name=f"very first start, {label}", value=first, unit="s"),
        ]
        shutil.rmtree(folder)
    return figures


def _start(folder: Path, settings: dict[str, str], *, idle: float) -> tuple[float, float]:
    """Seconds to the first page, megabytes after ``idle`` seconds."""
    with running_server(folder, settings=settings) as server:
        seconds = server.wait_for_page()
        sleep(idle)
        return seconds, resident_megabytes(server.pid)
