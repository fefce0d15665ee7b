"""Measure the product's speed on a temporary data folder, and print a table of the figures."""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import gettempdir

from .figures import markdown_table
from .machine import describe_machine
from .run import end_on_signals, measure

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
    """Run the command. A missed goal is not an error, because the machine may be busy."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    wanted = [name for name in options.only.split(",") if name]
    if not wanted:
        parser.error("--only names no group")
    if unknown := set(wanted) - set(NAMES):
        parser.error(f"there is no group {', '.join(sorted(unknown))}")
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    for path in filter(None, (options.json, options.markdown)):
        try:  # checked first, because measuring takes minutes
            path.open("a").close()
        except OSError as error:
            parser.error(f"{path}: {error.strerror}")
    end_on_signals()
    machine = describe_machine()
    print(
        f"Measured is this machine, with SQLite in {gettempdir()};"
        " settings of the installation are not used.\n",
        flush=True,
    )
    runs = []
    for _ in range(options.runs):
        # Each run needs its own process, because Django cannot change its data folder.
        context = get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context, initializer=end_on_signals) as pool:
            runs.append(pool.submit(measure, wanted, options.quick).result())
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
