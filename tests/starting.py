"""Starts of the product as forks of one process that has loaded what is not its own.

Most of what a start costs is to load Django and others. What is told about settings is
all done by what comes after that: each fork has an environment of its own, reads the
settings anew, and ends as any process of Python does.
"""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.processes import ROOT, clean_environment

LOADED = (
    "dj_database_url",
    "django.core.management",
    "django.utils.csp",
    "environs",
    "marshmallow.validate",
    "yaml",
)


class Starts:
    """The process that is forked, and what its forks say."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder

    def run(self, *command: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """What Python is told on its command line: a file or ``-c`` and code, then arguments.
        ``env`` is the whole environment."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, errors = self._folder / "stdout", self._folder / "stderr"
        order = {"command": command, "env": dict(env), "out": str(out), "errors": str(errors)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(command, code, out.read_text(), errors.read_text())


@contextmanager
def forked_starts() -> Iterator[Starts]:
    with TemporaryDirectory(prefix="loom-starts-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.starting"],
            cwd=ROOT,
            env=clean_environment({}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield Starts(process, Path(folder))
        finally:
            process.communicate()


def serve() -> list[str]:
    """Fork for each order. Returns in the forks only, with what they are to run."""
    for name in LOADED:
        __import__(name)
    for line in sys.stdin:
        order = json.loads(line)
        if child := os.fork():
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        for path, number in ((os.devnull, 0), (order["out"], 1), (order["errors"], 2)):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(path, flags), number)
        os.environ.clear()
        os.environ.update(order["env"])
        return list(order["command"])
    sys.exit()


def run(command: list[str]) -> None:
    if command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        exec(command[1], {"__name__": "__main__"})
    else:
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    run(serve())
