"""The promise that nothing is lost, against SIGKILL, of processes that chat, call tools and
are called by programs. The scripts do more rounds; with ``LOOM_SOAK=full`` fifty callers under
ten keys go on for a minute and two kills."""

import os
from pathlib import Path

import pytest

from tests.crash.scripts import run_script

SMALL = ("--callers", "6", "--keys", "3", "--messages", "2", "--kills", "1")
FULL = ("--callers", "50", "--keys", "10", "--seconds", "60", "--kills", "2")


@pytest.mark.skipif("DATABASE_URL" in os.environ, reason="it has a data folder of its own")
def test_a_killed_process_loses_nothing_and_does_nothing_twice(migrated: Path) -> None:
    size = FULL if os.environ.get("LOOM_SOAK") == "full" else SMALL
    arguments = ("--beside", "--strict", *size, "--database", str(migrated))
    printed = run_script("tests.crash", *arguments)
    # Of tools, under programs, and of the server under people.
    assert printed.count(" 0 problems") == 3, printed
    assert "1 kills: " in printed
