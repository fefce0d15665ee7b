"""Commands in a data folder in which no server has run yet."""

import errno
import fcntl
import io
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, Never

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command, get_commands

from benchmarks.processes import clean_environment
from conversations.archive.blobs import put_blob, remove_untouched
from conversations.management.base import DatabaseCommand, migrating_alone, open_output
from conversations.runtime.ownership import Owner

from .features import merge
from .starting import Starts

COLLECT = """
from conversations.management.commands._first_run import collect_static_files
collect_static_files()
"""

WITHOUT = {"bench"}
"""Commands that need no database."""

PREPARES = {"migrate", "serve"}
"""Commands that migrate the database themselves."""


def test_processes_that_start_at_once_prepare_the_data_folder_once(
    tmp_path: Path, starts: Starts
) -> None:
    """Other users may read the data folder, but not the database."""
    (tmp_path / "data").mkdir(mode=0o755)
    env = clean_environment({"LOOM_DATA_DIR": str(tmp_path / "data")})
    with starts.loaded(env) as loaded:
        start_at_once(loaded, env)
        assert stat.S_IMODE((tmp_path / "data/loom.sqlite3").stat().st_mode) == 0o600
        folder = tmp_path / "data/workspaces/beds"
        folder.mkdir()
        done = loaded.run("manage.py", "create_workspace", str(folder), env=env)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert "/w/beds/" in said
        assert "Traceback" not in said
        collect_again(loaded, env, tmp_path / "data/static")


def start_at_once(loaded: Starts, env: dict[str, str]) -> None:
    """Start two servers and a command at the same time."""
    command = [sys.executable, "manage.py"]
    serve, verify = [*command, "serve", "--port", "0"], [*command, "verify_archive"]
    running = [loaded.popen(one, env=env, stdout=subprocess.PIPE) for one in (serve, verify, serve)]
    verifying, servers = running[1], running[::2]
    try:
        said = verifying.communicate()[0]
        assert verifying.returncode == 0, said
        for server in servers:
            assert server.stdout is not None
            assert any("Loom Web is running at" in line for line in server.stdout)
    finally:
        for one in running:
            one.kill()
        for server in servers:
            server.communicate()


def collect_again(loaded: Starts, env: dict[str, str], root: Path) -> None:
    """Collect the static files again and check that those of a running server stay."""

    def served_files() -> set[str]:
        return set(json.loads((root / "staticfiles.json").read_text())["paths"].values())

    served = served_files()
    # old.js belongs to another version that is running, older.456.js to a version before it.
    manifest = json.loads((root / "staticfiles.json").read_text())
    manifest["paths"]["old.js"] = "old.123.js"
    (root / "staticfiles.json").write_text(json.dumps(manifest))
    for name in ("old.123.js", "old.123.js.gz", "older.456.js"):
        (root / name).write_text("old")
    (root / "js/chat.js").write_text("changed since")
    (root / ".stamp").unlink()
    done = loaded.run("manage.py", "shell", "-c", COLLECT, env=env)
    assert done.returncode == 0, done.stderr
    assert served_files() == served
    assert (root / "old.123.js").exists()
    assert (root / "old.123.js.gz").exists()
    assert not (root / "older.456.js").exists()
    assert (root / "js/chat.js").read_text() != "changed since"
    assert all((root / name).exists() for name in served)


def test_locks_can_be_acquired_on_nfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS grants no exclusive lock on a file that is open for reading only."""
    real = fcntl.flock

    def flock(file: Any, how: int) -> None:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(settings.LOOM, "data_dir", tmp_path)
    with migrating_alone():
        pass
    with closing(Owner(tmp_path)) as owner, closing(Owner(tmp_path)) as other:
        assert owner.is_gone(other.id) is False
    assert remove_untouched(put_blob(b"Nobody has this any more"), since=time.time() + 60)


def test_only_a_read_only_folder_needs_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "data_dir", tmp_path)

    def refuse(number: int) -> Callable[..., Never]:
        def refused(*_: object) -> Never:
            raise OSError(number, os.strerror(number))

        return refused

    with monkeypatch.context() as patch:  # the tests may run as root, who can write anywhere
        for number in (errno.EACCES, errno.EROFS):
            patch.setattr(Path, "open", refuse(number))
            with migrating_alone():
                pass
        patch.setattr(Path, "open", refuse(errno.ENOSPC))
        with pytest.raises(CommandError, match=r"prepare\.lock: No space left"), migrating_alone():
            pass
    monkeypatch.setattr(fcntl, "flock", refuse(errno.ENOLCK))
    with pytest.raises(CommandError, match=r"prepare\.lock: No locks available"), migrating_alone():
        pass


def test_output_can_be_written_to_a_named_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with open(reading, encoding="utf-8") as reader:
        with open_output(str(pipe), None) as file:
            file.write("Roses\n")
        assert reader.read() == "Roses\n"
    assert pipe.is_fifo()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        *((command.split(), *row) for command, row in merge("COMMANDS").items()),
        (["send", "--workspace", "example", "Hello"], 2, "This workspace does not exist."),
        (["sign_in_link"], 1, "There is no account yet."),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_works_in_an_empty_database_or_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], code: int, says: str
) -> None:
    monkeypatch.setattr(settings.LOOM, "workspace_roots", [tmp_path])
    lines = [{"type": "session", "uuid": "6f1b5c9e-4a43-4c5e-9a55-0a1d7d0f3c11"}]
    lines += [{"type": "turn", "number": 1, "role": "user", "content": "Roses"}]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out, ended, said = io.StringIO(), 0, ""
    try:
        call_command(*(word.format(tmp_path) for word in words), stdout=out, stderr=out)
    except CommandError as error:
        ended, said = error.returncode, str(error)
    assert ended == code
    assert says in out.getvalue() + said


def test_every_command_that_uses_the_database_creates_it() -> None:
    ours = {name: app for name, app in get_commands().items() if app.startswith("conversations")}
    for name in sorted(ours.keys() - WITHOUT - PREPARES):
        command = import_module(f"{ours[name]}.management.commands.{name}").Command
        assert issubclass(command, DatabaseCommand), name
