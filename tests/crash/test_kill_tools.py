"""Calls of tools against SIGKILL; the script does more rounds."""

import os
from pathlib import Path

import pytest

from tests.crash.scripts import run_script

ROUNDS = 2


@pytest.mark.skipif("DATABASE_URL" in os.environ, reason="it has a data folder of its own")
def test_a_killed_process_does_nothing_twice_and_leaves_what_waits(migrated: Path) -> None:
    printed = run_script("kill_tools", "--rounds", str(ROUNDS), "--database", str(migrated))
    assert " 0 problems" in printed
