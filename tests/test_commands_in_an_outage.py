"""Commands while the database is unreachable."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.processes import clean_environment

from .features import merge
from .starting import Starts

type Away = tuple[Starts, Path]


@pytest.fixture(scope="module")
def away(starts: Starts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Away]:
    """The product with a database URL that no server listens on, and its data folder."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "all.jsonl").write_text("")
    url = "postgres://loom@127.0.0.1:1/loom"
    env = clean_environment({"LOOM_DATA_DIR": str(folder), "DATABASE_URL": url})
    with starts.loaded(env) as loaded:
        yield loaded, folder


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
def test_a_command_reports_an_unreachable_database_in_one_line(away: Away, command: str) -> None:
    loaded, folder = away
    env = clean_environment({"LOOM_DATA_DIR": str(folder)})
    done = loaded.run("manage.py", *command.format(folder).split(), env=env)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "The database is not responding" in line
    assert done.stdout == ""
