"""One turn for each key and streams that go on, against SIGKILL; the script does more, and
``LOOM_SOAK=full`` the whole of it: fifty callers, ten keys, a minute, two kills."""

import os
from pathlib import Path

import pytest

from tests.crash.scripts import run_script

SMALL = ("--callers", "8", "--keys", "3", "--messages", "2", "--kills", "1")
FULL = ("--callers", "50", "--keys", "10", "--seconds", "60", "--kills", "2")


@pytest.mark.skipif("DATABASE_URL" in os.environ, reason="it has a data folder of its own")
def test_callers_of_a_killed_server_get_one_turn_for_each_key(migrated: Path) -> None:
    size = FULL if os.environ.get("LOOM_SOAK") == "full" else SMALL
    arguments = ("--beside", "--strict", *size, "--database", str(migrated))
    assert " 0 problems" in run_script("kill_callers", *arguments)
