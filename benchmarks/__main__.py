"""The command line: a throw-away data folder, the groups, a table or JSON."""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .figures import Figure, format_table
from .machine import describe_machine, load_text
from .processes import clean_environment, running_server

if TYPE_CHECKING:
    from .bench import Bench

NAMES = (
    *("start", "first_token", "burst", "streams", "writers", "age", "window", "search", "tools"),
    *("files", "review", "hostile"),
)


@dataclass(slots=True)
class Outcome:
    """What a group found, and how busy the machine was before it and after."""

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


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="manage.py bench", description=__doc__)
    parser.add_argument(
        "--only", metavar="NAME,…", default=",".join(NAMES), help=f"some of {', '.join(NAMES)}"
    )
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there too")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """A missed target is no failure: the machine may be busy with something else."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    wanted = [name for name in options.only.split(",") if name]
    if unknown := set(wanted) - set(NAMES):
        parser.error(f"there is no group {', '.join(sorted(unknown))}")
    with TemporaryDirectory(prefix="loom-bench-") as folder:
        bench = _prepare(Path(folder), is_quick=options.quick)
        outcomes = [_run(name, bench) for name in wanted]
    if options.json:
        found = {"machine": describe_machine(), "groups": [o.as_json() for o in outcomes]}
        options.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    missed = [f"{o.group}: {f.name}" for o in outcomes for f in o.figures if f.is_met is False]
    print("Missed: " + "; ".join(missed) if missed else "Every target was met.")


def _prepare(data_dir: Path, *, is_quick: bool) -> "Bench":
    """Fill the folder as a first start does, and let this process use it."""
    environment = clean_environment({"LOOM_DATA_DIR": str(data_dir)})
    os.environ.clear()
    os.environ.update(environment, DJANGO_SETTINGS_MODULE="loomweb.settings")
    with running_server(data_dir):
        pass
    import django

    django.setup()
    from .bench import Bench

    return Bench(data_dir=data_dir, is_quick=is_quick)


def _run(name: str, bench: "Bench") -> Outcome:
    from .groups import GROUPS

    before, began = load_text(), perf_counter()
    figures = GROUPS[name](bench)
    outcome = Outcome(name, figures, (before, load_text()), perf_counter() - began)
    print(outcome.table, flush=True)
    return outcome


if __name__ == "__main__":
    main()
