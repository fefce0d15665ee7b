"""The promise that nothing is lost, against SIGKILL; the script does more rounds."""

import os
from pathlib import Path

import pytest

from tests.crash.scripts import run_script
from tests.crash.stories import STORIES

ROUNDS = 2
SMALL = (
    "--rounds",
    str(ROUNDS),
    "--sessions",
    str(len(set(STORIES))),
    "--latest",
    "1.2",
    "--bound",
    "3",
)


@pytest.mark.skipif("DATABASE_URL" in os.environ, reason="it has a data folder of its own")
def test_a_killed_server_loses_no_message_and_little_text(migrated: Path) -> None:
    printed = run_script("kill_server", *SMALL, "--database", str(migrated))
    assert f"{ROUNDS} kills" in printed
