"""Kills with SIGKILL of processes that chat, call tools and are called by programs.

No data may be lost. The scripts can play more rounds. With ``LOOM_SOAK=full``, fifty callers
under ten keys call for a minute, with two kills.
"""

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
    # One line for the kills of tools, one for those under programs, one for those under people.
    assert printed.count(" 0 problems") == 3, printed
    assert "1 kills: " in printed
