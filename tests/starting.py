"""Processes of the product, forked from a process that has already imported its dependencies.

Most of the time of a start is spent on importing Django, Twisted and the provider's SDK. A fork has
its own environment, reads the settings and loads the product. It exits and can be stopped or killed
like any other Python process.
"""

import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from select import select
from tempfile import TemporaryFile
from typing import IO, Any, Literal

from benchmarks.processes import ROOT, clean_environment

SETTINGS = ("dj_database_url", "django.core.management", "django.utils.csp", "environs", "yaml")
"""Modules that are imported to read the settings."""

SERVER = (
    *SETTINGS,
    "autobahn.twisted.websocket",
    "channels.generic.websocket",
    "django.db.backends.sqlite3.base",
    "django.test.client",
    "limits.aio",
    "markdown_it",
    "PIL.Image",
    "pydantic.json_schema",
    "pygments.formatters",
    "twisted.internet.asyncioreactor",
    "twisted.internet.endpoints",
    "twisted.web.http",
    "anthropic",
)
"""Modules that a server imports, including the SDK of its provider."""


OURS = {"benchmarks", "conversations", "loomweb", "scripts", "tests"}


class Forked:
    """A forked process with the interface of ``subprocess.Popen``."""

    def __init__(self, starts: "Starts", pid: int, stdout: IO[str] | None) -> None:
        self.pid, self.stdout = pid, stdout
        self.returncode: int | None = None
        self._starts = starts
        self._ends = os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ended, _, _ = select([self._ends], [], [], timeout)
            if not ended:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            os.close(self._ends)
            self.returncode = self._starts.reap(self.pid)
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._ends, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self) -> tuple[str, None]:
        text = ""
        if self.stdout is not None:
            with self.stdout:
                text = self.stdout.read()
        self.wait()
        return text, None


class Starts:
    """A client of the process that forks on request."""

    def __init__(self, orders: socket.socket, settings: Mapping[str, str] | None) -> None:
        self._orders = orders
        self._settings = settings

    def popen(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
        cwd: Path = ROOT,
        text: Literal[True] = True,
    ) -> Forked:
        """Start a process in a fork.

        ``command`` is this Python interpreter with a file, ``-m`` and a module, or ``-c`` and code,
        followed by arguments. ``env`` is the whole environment. If ``cwd`` is another folder, the
        process imports the product's packages from it.
        """
        assert command[0] == sys.executable
        assert self._settings in (None, _settings_in(env)), "the product is loaded with others"
        if stdout != subprocess.PIPE:
            return Forked(self, self._fork(command, env, stdout or sys.stdout, stderr, cwd), None)
        reading, writing = os.pipe()
        try:
            pid = self._fork(command, env, writing, stderr, cwd)
        finally:
            os.close(writing)
        return Forked(self, pid, os.fdopen(reading))

    def _fork(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        out: IO[Any] | int,
        errors: IO[Any] | int | None,
        cwd: Path,
    ) -> int:
        files = [
            file if isinstance(file, int) else file.fileno() for file in (out, errors or sys.stderr)
        ]
        order = {"command": command[1:], "env": dict(env), "cwd": str(cwd)}
        socket.send_fds(self._orders, [json.dumps(order).encode()], files)
        return int(self._orders.recv(100))

    def run(
        self, *command: str, env: Mapping[str, str], cwd: Path = ROOT, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a process to its end. Return its output and its exit code."""
        with TemporaryFile("w+") as out, TemporaryFile("w+") as errors:
            forked = self.popen(
                (sys.executable, *command), env=env, stdout=out, stderr=errors, cwd=cwd
            )
            try:
                code = forked.wait(timeout)
            finally:
                forked.kill()
            for file in (out, errors):
                file.seek(0)
            return subprocess.CompletedProcess(command, code, out.read(), errors.read())

    @contextmanager
    def loaded(self, env: Mapping[str, str]) -> Iterator["Starts"]:
        """Fork a process that also loads the product, with the settings in ``env``.

        The new process can be forked in turn.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                order = json.dumps({"load": dict(env)}).encode()
                socket.send_fds(self._orders, [order], [theirs.fileno()])
                pid = int(self._orders.recv(100))
            yield Starts(ours, _settings_in(env))
        self.reap(pid)

    def reap(self, pid: int) -> int:
        self._orders.send(json.dumps({"reap": pid}).encode())
        return int(self._orders.recv(100))


def _settings_in(env: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that are read when the product is loaded.

    ``LOOM_PORT`` is left out, because the port is also an argument.
    """
    own = {
        name: value
        for name, value in env.items()
        if name.startswith(("LOOM_", "ANTHROPIC_", "OPENAI_"))
    }
    return {name: value for name, value in own.items() if name != "LOOM_PORT"}


@contextmanager
def forked_starts(
    loaded: Sequence[str] = SERVER, *, env: Mapping[str, str] | None = None
) -> Iterator[Starts]:
    """Start a process that has imported ``loaded`` and forks on request.

    If ``env`` is given, the process also loads the product in this environment. All forks then have
    the same settings.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.starting", str(theirs.fileno()), *loaded],
                cwd=ROOT,
                env=clean_environment({}) if env is None else env,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        try:
            yield Starts(ours, None if env is None else _settings_in(env))
        finally:
            process.kill()
            process.wait()


def wait_for_orders(orders: socket.socket) -> list[str]:
    """Fork for each order. Return only in the forks, with the command to run."""
    while True:
        text, files, _, _ = socket.recv_fds(orders, 1_000_000, 2)
        if not text:
            sys.exit()
        order = json.loads(text)
        if "reap" in order:
            _, status = os.waitpid(order["reap"], 0)
            answer = os.waitstatus_to_exitcode(status)
        elif not (answer := os.fork()):
            break
        for file in files:
            os.close(file)
        orders.send(str(answer).encode())
    orders.close()
    os.environ.clear()
    if "load" in order:
        os.environ.update(order["load"])
        load_product()
        gc.freeze()
        return wait_for_orders(socket.socket(fileno=files[0]))
    for number, file in enumerate(files, 1):
        os.dup2(file, number)
        os.close(file)
    os.environ.update(order["env"])
    if order["cwd"] != str(ROOT):
        os.chdir(order["cwd"])
        sys.path[0] = order["cwd"]
        for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
            del sys.modules[name]
    return list(order["command"])


def load_product() -> None:
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "loomweb.settings"
    django.setup()
    import_module("loomweb.urls")
    import_module("conversations.api.main")  # otherwise each fork loads it with its first request


def run(command: list[str]) -> None:
    """Run a file, a module or code, as the Python interpreter would."""
    if command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        exec(command[1], {"__name__": "__main__"})
    elif command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        sys.path[0] = str(Path(command[0]).resolve().parent)
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    for name in sys.argv[2:]:
        import_module(name)
    if "LOOM_DATA_DIR" in os.environ:
        load_product()
    gc.freeze()
    run(wait_for_orders(socket.socket(fileno=int(sys.argv[1]))))
