"""Commands in a data folder in which no server has run yet."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from django.core.management import get_commands

from benchmarks.processes import clean_environment
from conversations.management.base import DatabaseCommand

from .features import merge
from .starting import SETTINGS, Starts, forked_starts

WITHOUT = {"bench", "check_mcp"}
"""Commands that need no database."""

PREPARES = {"serve"}
"""Commands that bring any database up to date."""


@pytest.fixture(scope="module")
def starts() -> Iterator[Starts]:
    with forked_starts((*SETTINGS, "django.db.backends.sqlite3.base")) as made:
        yield made


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["create_workspace", "{}/data/workspaces/beds"], 0, "/w/beds/"),
        *((command.split(), *row) for command, row in merge("COMMANDS").items()),
        (["send", "--workspace", "example", "Hello"], 1, "There is no such workspace."),
        (["sign_in_link"], 1, "No account."),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_works_or_says_in_a_sentence_what_is_missing(
    starts: Starts, tmp_path: Path, words: list[str], code: int, says: str
) -> None:
    (tmp_path / "data/workspaces/beds").mkdir(parents=True)
    lines = [{"type": "session", "uuid": "6f1b5c9e-4a43-4c5e-9a55-0a1d7d0f3c11"}]
    lines += [{"type": "turn", "number": 1, "role": "user", "content": "Roses"}]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [word.format(tmp_path) for word in words]
    env = clean_environment({"LOOM_DATA_DIR": str(tmp_path / "data")})
    done = starts.run("manage.py", *command, env=env)
    said = done.stdout + done.stderr
    assert (done.returncode, "Traceback" in said, "no such table" in said) == (
        code,
        False,
        False,
    ), said
    assert says in said


def test_every_command_that_uses_the_database_makes_it() -> None:
    ours = {name: app for name, app in get_commands().items() if app.startswith("conversations")}
    for name in sorted(ours.keys() - WITHOUT - PREPARES):
        command = import_module(f"{ours[name]}.management.commands.{name}").Command
        assert issubclass(command, DatabaseCommand), name
