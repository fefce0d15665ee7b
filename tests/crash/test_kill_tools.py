"""Calls of tools against SIGKILL; the script does more rounds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 3


@pytest.mark.skipif("DATABASE_URL" in os.environ, reason="it has a data folder of its own")
def test_a_killed_process_does_nothing_twice_and_leaves_what_waits(migrated: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "tests.crash.kill_tools", "--rounds", str(ROUNDS)),
            *("--database", str(migrated)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
