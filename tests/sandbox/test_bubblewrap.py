"""What a sandbox shows, wherever workspace, data folder and further paths lie."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from conversations.sandbox import run_command
from tests.tools.commanding import set_loom

SECRET = "the key"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "secret_key").write_text(SECRET)
    set_loom(monkeypatch, data_dir=folder)
    return folder


async def run_in(root: Path, command: str, **options: Any) -> str:
    done = await run_command(["/bin/sh", "-c", command], root=root, **options)
    return done.output


async def test_a_workspace_in_the_data_folder_sees_itself_only(data: Path) -> None:
    root = data / "workspaces/example"
    root.mkdir(parents=True)
    output = await run_in(root, f"touch made; cat {data}/secret_key; ls {data}")
    assert SECRET not in output
    assert output.endswith("workspaces\n")
    assert (root / "made").exists()


async def test_the_data_folder_is_covered_in_a_workspace_around_it(
    data: Path, tmp_path: Path
) -> None:
    output = await run_in(tmp_path, "cat data/secret_key; echo x > data/secret_key; touch made")
    assert SECRET not in output
    assert (data / "secret_key").read_text() == SECRET
    assert (tmp_path / "made").exists()


async def test_and_in_further_paths_that_commands_may_read(
    data: Path, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin/greet"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho greetings\n")
    program.chmod(0o755)
    set_loom(monkeypatch, sandbox_paths=[tmp_path, tmp_path / "none"])
    output = await run_in(root, f"greet; touch {program} {root}/made; cat {data}/*; ls {data}")
    assert output.startswith("greetings\n")
    assert "Read-only" in output
    assert SECRET not in output
    assert (root / "made").exists()


async def test_a_database_elsewhere_is_covered_too(
    data: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = root / "db.sqlite3"
    database.write_text(SECRET)
    monkeypatch.setitem(settings.DATABASES["default"], "NAME", str(database))
    output = await run_in(root, "cat db.sqlite3; echo x > db.sqlite3; rm db.sqlite3; echo done")
    assert output.endswith("done\n")
    assert SECRET not in output
    assert database.read_text() == SECRET


async def test_who_only_looks_cannot_write(root: Path) -> None:
    command = "touch made; echo > x; ls; touch /tmp/fine && echo fine"
    output = await run_in(root, command, may_write=False)
    assert output.count("Read-only file system") == 2
    assert output.endswith("fine\n")
    assert not (root / "made").exists()


async def test_what_is_read_besides_is_there_and_read_only(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "given"
    file.write_text("given\n")
    output = await run_in(root, f"cat {file}; echo x > {file}", readable=[file])
    assert output.startswith("given\n")
    assert file.read_text() == "given\n"


async def test_a_folder_with_an_odd_name(tmp_path: Path, sh: Callable[..., Any]) -> None:
    odd = tmp_path / "--a b\n'$(x)' \u202e"
    odd.mkdir()
    await run_in(odd, "touch made")
    assert (odd / "made").exists()


CONNECT = "import socket; socket.create_connection(('127.0.0.1', {})); print('connected')"


async def test_the_network_is_there_where_it_is_allowed(root: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        command = ["python3", "-c", CONNECT.format(server.getsockname()[1])]
        assert (await run_command(command, root=root, allows_network=True)).output == "connected\n"
        assert (await run_command(command, root=root)).exit_code == 1
