"""One run of some groups on a temporary data folder."""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any

from .figures import Figure, format_table
from .machine import load_text
from .processes import WITHOUT_EXTRAS, clean_environment, running_server

if TYPE_CHECKING:
    from .bench import Bench


@dataclass(slots=True)
class Outcome:
    """The figures of a group, and the load of the machine before and after it."""

    group: str
    figures: list[Figure]
    load: tuple[str, str]
    seconds: float

    @property
    def table(self) -> str:
        footer = f"  ({self.seconds:.0f} s; before: {self.load[0]}; after: {self.load[1]})"
        return f"{format_table(self.group, self.figures)}\n{footer}\n"

    def as_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "seconds": round(self.seconds, 1),
            "load_before": self.load[0],
            "load_after": self.load[1],
            "figures": [figure.as_json() for figure in self.figures],
        }


def end_on_signals() -> None:
    """Exit on SIGINT and SIGTERM such that servers are stopped and temporary folders removed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):  # a second signal must not stop the clean-up
        signal.signal(each, signal.SIG_IGN)
    for child in active_children():
        child.terminate()
    sys.exit(128 + number)


def measure(groups: Sequence[str], is_quick: bool) -> list[Outcome]:
    with TemporaryDirectory(prefix="loom-bench-") as folder:
        bench = _prepare(Path(folder), is_quick=is_quick)
        return [_run(name, bench) for name in groups]


def _prepare(data_dir: Path, *, is_quick: bool) -> "Bench":
    """Prepare the folder by a first start, and make this process use it."""
    environment = clean_environment({"LOOM_DATA_DIR": str(data_dir)} | WITHOUT_EXTRAS)
    os.environ.clear()
    os.environ.update(environment, DJANGO_SETTINGS_MODULE="loomweb.settings")
    with running_server(data_dir):
        pass
    import django

    django.setup()
    from .bench import Bench

    return Bench(data_dir=data_dir, is_quick=is_quick)


def _run(name: str, bench: "Bench") -> Outcome:
    from conversations.search.indexing import index_waiting

    from .groups import GROUPS

    index_waiting()  # otherwise this group's servers would index the turns of the group before
    before, began = load_text(), perf_counter()
    figures = GROUPS[name](bench)
    outcome = Outcome(name, figures, (before, load_text()), perf_counter() - began)
    print(outcome.table, flush=True)
    return outcome
