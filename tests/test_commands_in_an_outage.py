"""Commands while the database is unreachable."""

from pathlib import Path

import pytest

from benchmarks.processes import clean_environment

from .features import merge
from .starting import Starts


@pytest.mark.parametrize(
    "command",
    [
        "send --workspace example Hello",
        *merge("COMMANDS"),
        "migrate",
        "serve",
    ],
    ids=lambda command: command.split()[0],
)
def test_a_command_says_in_one_sentence_that_the_database_is_away(
    starts: Starts, tmp_path: Path, command: str
) -> None:
    (tmp_path / "all.jsonl").write_text("")
    # Nobody listens on this port.
    away = {"LOOM_DATA_DIR": str(tmp_path), "DATABASE_URL": "postgres://loom@127.0.0.1:1/loom"}
    done = starts.run("manage.py", *command.format(tmp_path).split(), env=clean_environment(away))
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "The database is not responding" in line
    assert done.stdout == ""
