"""Shared parts of this folder's scripts, and a function that runs a script as a process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copy, copytree, rmtree
from tempfile import TemporaryFile, mkdtemp

from benchmarks.processes import (
    WITHOUT_EXTRAS,
    Server,
    Wire,
    clean_environment,
    free_port,
    running_wire,
)
from tests.starting import Forked, Starts, forked_starts

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 400.0
"""Timeout of a script. It is below a test's timeout, so that the output of a script that hangs is
still shown."""

SETTINGS = WITHOUT_EXTRAS | {
    "LOOM_API_RATE": "1000000/minute",
    "LOOM_MAX_INPUT_TOKENS": "20000",
    "LOOM_PAGE_SIZE": "500",
    "LOOM_SSE_HEARTBEAT_SECONDS": "0.2",
}


@dataclass(frozen=True, slots=True)
class Ground:
    """A data folder, the provider's stand-in and a starter of processes that use them."""

    folder: Path
    wire: Wire
    starts: Starts

    @property
    def settings(self) -> dict[str, str]:
        return SETTINGS | self.wire.settings

    def make_server(self) -> Server:
        port = free_port()
        return Server(
            data_dir=self.folder,
            port=port,
            settings=self.settings,
            arguments=("--no-prepare", "--port", str(port)),
            popen=self.starts.popen,
        )

    def start_module(self, name: str) -> Forked:
        own = {"LOOM_DATA_DIR": str(self.folder)}
        return self.starts.popen(
            [sys.executable, "-m", name],
            env=clean_environment(own | self.settings),
            stdout=subprocess.PIPE,
        )


@contextmanager
def prepared(database: Path | None) -> Iterator[Ground]:
    """Yield a new ground, and let this process read its archive too.

    ``database`` is a migrated database to begin with, with static files beside it.
    """
    folder = Path(mkdtemp(prefix="loom-crash-"))
    if database:
        copy(database, folder)
        copytree(database.parent / "static", folder / "static")
    with running_wire() as wire:
        env = clean_environment(SETTINGS | wire.settings | {"LOOM_DATA_DIR": str(folder)})
        with forked_starts(env=env) as starts:
            use_data(folder)
            if not database:
                from django.core.management import call_command

                call_command("migrate", verbosity=0)
            yield Ground(folder, wire, starts)


def conclude(ground: Ground, problems: Sequence[str]) -> int:
    """Return the script's exit code. Delete the data unless there are problems."""
    if not problems:
        rmtree(ground.folder)
        return 0
    print("\n".join(problems[:50]), f"\nThe data is kept in {ground.folder}.", sep="")
    return 1


def use_data(folder: Path) -> None:
    """Let this process read the archive in the folder."""
    environment = clean_environment({"LOOM_DATA_DIR": str(folder)})
    os.environ.clear()
    os.environ.update(environment, DJANGO_SETTINGS_MODULE="loomweb.settings")
    import django

    django.setup()


def run_script(name: str, *arguments: str) -> str:
    """Run a script and return its output. If it times out, kill it and its processes."""
    command = [sys.executable, "-m", name, *arguments]
    with TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=printed, stderr=printed, start_new_session=True
        )
        try:
            code: int | str = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            code = f"nothing after {SECONDS} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        printed.seek(0)
        text = printed.read()
    assert code == 0, f"{code}\n{text}"
    return text
