"""The command line: a throw-away data folder, the groups, a table or JSON."""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from .figures import markdown_table
from .machine import describe_machine
from .run import measure

USUAL = (
    *("start", "first_token", "streams", "processor", "browser", "exchanges", "age", "sessions"),
    *("imports", "append", "writers"),
)
NAMES = (*USUAL, "window", "search", "tools", "files", "review", "hostile", "people")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="manage.py bench", description=__doc__)
    parser.add_argument(
        "--only", metavar="NAME,…", default=",".join(USUAL), help=f"some of {', '.join(NAMES)}"
    )
    parser.add_argument(
        "--all", action="store_const", dest="only", const=",".join(NAMES), help="all of these"
    )
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--runs", metavar="N", type=int, default=1, help="measure so many times")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there too")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write a table there")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """A missed goal is no failure: the machine may be busy with something else."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    wanted = [name for name in options.only.split(",") if name]
    if unknown := set(wanted) - set(NAMES):
        parser.error(f"there is no group {', '.join(sorted(unknown))}")
    machine = describe_machine()
    # Each run has a process of its own, because Django takes one data folder in its life.
    one_each = ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1)
    with one_each as pool:
        runs = list(pool.map(measure, [wanted] * options.runs, [options.quick] * options.runs))
    if options.json:
        found = {"machine": machine, "runs": [[o.as_json() for o in run] for run in runs]}
        options.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    flat = [[figure for outcome in run for figure in outcome.figures] for run in runs]
    if options.markdown:
        lines = [", ".join(f"{name} {value}" for name, value in machine.items()), ""]
        options.markdown.write_text("\n".join([*lines, *markdown_table(flat)]) + "\n")
    missed = dict.fromkeys(f.name for run in flat for f in run if f.is_met is False)
    print("Missed: " + "; ".join(missed) if missed else "Every goal was met.")


if __name__ == "__main__":
    main()
