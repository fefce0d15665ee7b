"""The server and the simulated provider as separate processes."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

from .wire import KEY, SentAnswer, SentPiece

ROOT = Path(__file__).resolve().parent.parent
FOREIGN = (
    "LOOM_",
    "ANTHROPIC_",
    "OPENAI_",
    "DJANGO_",
    "DATABASE_URL",
    "REDIS_URL",
    "PYTHONDONTWRITE",
)
"""Prefixes of environment variables that would change a measurement."""

CHOSEN = "LOOM_ASGI_SERVER"
"""The exception to ``FOREIGN``, because measurements and tests can use either server."""

START_SECONDS = 60.0
STOP_SECONDS = 30.0


class NotStarted(Exception):
    """A process ended or did not respond before it was ready."""


# Installed extras must not influence the figures.
WITHOUT_EXTRAS = {"LOOM_SEMANTIC": "off", "LOOM_TITLE_MODEL": "off"}


def clean_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with only these settings of the product."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == CHOSEN or not name.startswith(FOREIGN)
    }
    return {**kept, "PYTHONUNBUFFERED": "1", **settings}


def free_port() -> int:
    """Return a port on which no process listens and that a restarted server can use again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_page(port: int, path: str, *, since: float) -> float:
    """Return the seconds from ``since`` on the monotonic clock to the first response 200."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == http.client.OK:
                return monotonic() - since
        except (OSError, http.client.HTTPException):
            sleep(0.005)
        finally:
            connection.close()
        if monotonic() - since > START_SECONDS:
            raise NotStarted(f"no page on port {port} after {START_SECONDS} s")


@dataclass(slots=True, kw_only=True)
class Server:
    """A process of ``manage.py serve`` on a data folder.

    ``log`` is the file of its standard error. ``popen`` creates the process.
    """

    data_dir: Path
    port: int
    settings: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    popen: Callable[..., subprocess.Popen[str]] = subprocess.Popen
    process: subprocess.Popen[str] | None = None
    link: str = ""
    started: float = 0.0

    @property
    def log(self) -> Path:
        return self.data_dir / "server.log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start the server, and return when it has printed its URL."""
        self.launch()
        self.link = self.read_link()

    def launch(self) -> None:
        """Start the process without waiting."""
        own = {"LOOM_DATA_DIR": str(self.data_dir), "LOOM_PORT": str(self.port)}
        self.started = monotonic()
        with self.log.open("a") as log:
            self.process = self.popen(
                [sys.executable, "manage.py", "serve", *self.arguments],
                cwd=ROOT,
                env=clean_environment(own | self.settings),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def read_link(self) -> str:
        """Return the sign-in link as soon as it is printed. Raise NotStarted."""
        assert self.process is not None
        assert self.process.stdout is not None
        link = ""
        for line in self.process.stdout:
            if found := re.search(r"http\S+(/sign-in/link/\S+)", line):
                link = found[1]
            if "Ctrl-C" in line:
                return link
        raise NotStarted(
            f"the server did not start; see {self.log}:\n{self.log.read_text()[-2000:]}"
        )

    def sign_in(self, link: str = "") -> str:
        """Sign in with the printed link, or another one, and return the cookies."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
        connection.request("GET", link or self.link)
        response = connection.getresponse()
        response.read()
        cookies = [value.partition(";")[0] for value in response.headers.get_all("Set-Cookie", [])]
        connection.close()
        return "; ".join(cookies)

    def wait_for_page(self) -> float:
        """Return the seconds from the start of the process to its first response 200."""
        return wait_for_page(self.port, "/sign-in/", since=self.started)

    def kill(self) -> None:
        """Kill the process, like a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Terminate the process as a service manager does.

        SIGINT is not used, because background jobs of a shell and their children ignore it.
        """
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None

    def problems(self) -> list[str]:
        """Return the lines of the log that contain errors."""
        words = ("ERROR", "CRITICAL", "Traceback")
        lines = self.log.read_text().splitlines()
        return [line for line in lines if any(word in line for word in words)]


@contextmanager
def running_server(
    data_dir: Path, *, settings: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start a server, and stop it at the end."""
    server = Server(
        data_dir=data_dir, port=free_port(), settings=WITHOUT_EXTRAS | dict(settings or {})
    )
    try:
        server.start()
        yield server
    finally:
        server.stop()


@dataclass(slots=True)
class Wire:
    """The wire server's process."""

    process: subprocess.Popen[str]
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def settings(self) -> dict[str, str]:
        """The settings with which a server uses this provider."""
        return {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": self.url}

    def take_answers(self) -> list[SentAnswer]:
        """Return the answers that were sent since the last call."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("take\n")
        self.process.stdin.flush()
        return [read_answer(row) for row in json.loads(self.process.stdout.readline())]


@dataclass(slots=True, kw_only=True)
class TakenAnswer(SentAnswer):
    """A sent answer that another process has reported."""

    taken: list[SentPiece] = field(default_factory=list)

    def pieces(self) -> list[SentPiece]:
        return self.taken


def read_answer(row: dict[str, object]) -> TakenAnswer:
    pieces = row.pop("pieces")
    return TakenAnswer(**row, taken=[SentPiece(*piece) for piece in pieces])  # type: ignore[arg-type, attr-defined]


@contextmanager
def running_wire() -> Iterator[Wire]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.wire"],
        cwd=ROOT,
        env=clean_environment({}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise NotStarted("the wire server did not start")
        yield Wire(process, url)
    finally:
        process.kill()
        process.communicate()
