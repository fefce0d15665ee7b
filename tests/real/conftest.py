"""Fixtures: a model server and the product, each in a process of its own."""

import http.client
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from getpass import getuser
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from benchmarks.processes import ROOT, Server, clean_environment, free_port
from conversations.management.commands._first_run import EXAMPLE_SLUG

if find_spec("xllamacpp") is None:  # see make test-real
    collect_ignore_glob = ["test_*.py"]

WINDOW = 2_048
FINAL = ("completed", "failed", "stopped", "interrupted")
MAX_SECONDS = 180.0  # For one answer, on a slow machine


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the model server."""
    port = free_port()
    log = tmp_path_factory.mktemp("llama") / "server.log"
    command = [sys.executable, "-m", "tests.real.llama", f"--port={port}", f"--window={WINDOW}"]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env=clean_environment({}), stdout=errors, stderr=errors
        )
    try:
        address = f"http://127.0.0.1:{port}"
        end = monotonic() + 60
        while not is_ready(port):
            assert process.poll() is None, log.read_text()[-2_000:]
            assert monotonic() < end, "the model server does not listen"
            sleep(0.1)
        yield address
    finally:
        process.kill()
        process.wait()


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        connection.close()


@dataclass(slots=True)
class Product:
    """The product's process, and a client of its API with one session."""

    server: Server
    token: str = ""
    session: str = ""

    @property
    def folder(self) -> Path:
        return self.server.data_dir / "workspaces" / EXAMPLE_SLUG

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=MAX_SECONDS)
        try:
            sent = None if body is None else json.dumps(body)
            kept = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            connection.request(method, f"/api/v1{path}", sent, kept | headers)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        assert response.status < 300, text
        return json.loads(text)

    def get(self, path: str) -> Any:
        return self.ask("GET", path)

    def send(self, text: str, *, key: str) -> str:
        """Send a message and return the run that answers it."""
        path = f"/sessions/{self.session}/messages"
        run = self.ask("POST", path, {"text": text}, **{"Idempotency-Key": key})["run"]
        return str(run)

    def wait(self, run: str, *states: str) -> dict[str, Any]:
        end = monotonic() + MAX_SECONDS
        while True:
            found: dict[str, Any] = self.get(f"/sessions/{self.session}/runs/{run}")
            if found["state"] in (states or FINAL):
                return found
            assert monotonic() < end, found
            sleep(0.25)  # because the rate of requests is limited

    def say(self, text: str, *, key: str) -> None:
        run = self.wait(self.send(text, key=key))
        assert run["state"] == "completed", (key, run)

    def answer_again(self, *, key: str) -> None:
        path, wanted = f"/sessions/{self.session}/runs", {"kind": "regenerate"}
        run = self.ask("POST", path, wanted, **{"Idempotency-Key": key})["run"]
        assert self.wait(str(run))["state"] == "completed"

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return rows of the product's database, which is opened read-only."""
        with closing(
            sqlite3.connect(f"file:{self.server.data_dir}/loom.sqlite3?mode=ro", uri=True)
        ) as read:
            return read.execute(sql).fetchall()

    def turns(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while page := self.get(f"/sessions/{self.session}/turns?after={len(found)}&limit=100"):
            found += page["items"]
            if not page["next"]:
                return found
        return found

    def command(self, *words: str) -> str:
        own = {"LOOM_DATA_DIR": str(self.server.data_dir)}
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=clean_environment(own | self.server.settings),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextmanager
def running_product(folder: Path, *, kind: str, url: str) -> Iterator[Product]:
    """Run the product. It knows the URL and the protocol of the model server, not its window."""
    folder.mkdir(mode=0o700)
    (folder / "providers.toml").write_text(
        f'[providers.local]\nkind = "{kind}"\nurl = "{url}"\n', encoding="utf-8"
    )
    server = Server(data_dir=folder, port=free_port())
    product = Product(server)
    try:
        server.start()
        product.token = product.command("create_token", getuser(), "--name=test").strip()
        path = f"/workspaces/{EXAMPLE_SLUG}/sessions"
        product.session = product.ask("POST", path, {"title": "A real model"})["uuid"]
        yield product
    finally:
        server.stop()
