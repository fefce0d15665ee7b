"""The files that a command sees in the sandbox, and the protection of git's own files."""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from conversations.agent.sandbox.bubblewrap import (
    SandboxSpec,
    WriteProtection,
    interpreter_paths,
    wrap,
)
from conversations.agent.sandbox.command_run import run_command
from conversations.agent.sandbox.support import find_support
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
    options.setdefault("protection", WriteProtection())
    done = await run_command(["/bin/sh", "-c", command], root=root, **options)
    return done.output


async def test_a_workspace_in_the_data_folder_sees_only_itself(data: Path) -> None:
    root = data / "workspaces/example"
    root.mkdir(parents=True)
    output = await run_in(root, f"touch made; cat {data}/secret_key; ls {data}")
    assert SECRET not in output
    assert output.endswith("workspaces\n")
    assert (root / "made").exists()


async def test_a_data_folder_inside_the_workspace_is_hidden(data: Path, tmp_path: Path) -> None:
    output = await run_in(tmp_path, "cat data/secret_key; echo x > data/secret_key; touch made")
    assert SECRET not in output
    assert (data / "secret_key").read_text() == SECRET
    assert (tmp_path / "made").exists()


async def test_a_data_folder_inside_other_readable_paths_is_hidden(
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


async def test_a_database_inside_the_workspace_is_hidden(
    data: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = root / "db.sqlite3"
    database.write_text(SECRET)
    monkeypatch.setitem(settings.DATABASES["default"], "NAME", str(database))
    output = await run_in(root, "cat db.sqlite3; echo x > db.sqlite3; rm db.sqlite3; echo done")
    assert output.endswith("done\n")
    assert SECRET not in output
    assert database.read_text() == SECRET


async def test_a_command_without_write_access_cannot_write(root: Path) -> None:
    command = "touch made; echo > x; ls; touch /tmp/fine && echo fine"
    output = await run_in(root, command, protection=None)
    assert output.count("Read-only file system") == 2
    assert output.endswith("fine\n")
    assert not (root / "made").exists()


async def test_additional_readable_paths_are_read_only(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "given"
    file.write_text("given\n")
    output = await run_in(root, f"cat {file}; echo x > {file}", readable=[file])
    assert output.startswith("given\n")
    assert file.read_text() == "given\n"


async def test_the_workspace_may_have_an_odd_name(tmp_path: Path, sh: Callable[..., Any]) -> None:
    odd = tmp_path / "--a b\n'$(x)' \u202e"
    odd.mkdir()
    await run_in(odd, "touch made")
    assert (odd / "made").exists()


CONNECT = "import socket; socket.create_connection(('127.0.0.1', {})); print('connected')"


async def test_the_network_is_reachable_only_if_allowed(root: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        command = ["python3", "-c", CONNECT.format(server.getsockname()[1])]
        assert (await run_command(command, root=root, allows_network=True)).output == "connected\n"
        assert (await run_command(command, root=root)).exit_code == 1


# Write protection


@pytest.fixture
def repository(root: Path) -> Path:
    for folder in ("objects", "refs", "hooks"):
        (root / "x/.git" / folder).mkdir(parents=True)
    for name in ("HEAD", "config"):
        (root / "x/.git" / name).write_text("own\n")
    return root / "x/.git"


def run_protected(root: Path, git: Path, command: str, **other: Any) -> str:
    """Run a command with write protection for the repository, as if it had just been found."""
    support = find_support()
    if not support.abilities.protects:
        pytest.skip("NO PROTECTION of what git obeys on this kind of machine")
    protection = WriteProtection(pinned=[git], read_only=[git / "config", git / "hooks"])
    inside = SandboxSpec(
        root=root,
        folder=other.pop("folder", root),
        readable=interpreter_paths(),
        hidden=other.pop("hidden", ()),
        protection=protection,
    )
    words = wrap(
        ["/bin/sh", "-c", command],
        inside,
        bwrap=support.bwrap,
        abilities=replace(support.abilities, filters=False),
    )
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


BYPASSING = {
    "itself": "echo x >> x/.git/config",
    "moved": "mv x/.git x/g || mv x/.git/config x/c || mv x/.git/hooks x/h",
    "of_process_1": "echo x >> /proc/1/root$PWD/x/.git/config || echo x >> /proc/1/cwd/.git/config",
    "unmounted": "umount x/.git/config || umount -l x/.git || mount -o remount,rw x/.git/config",
    "namespace": "unshare -Urm sh -c 'umount -l x/.git; echo x >> x/.git/config'",
    "process_1": "nsenter -t 1 -a sh -c 'echo x >> x/.git/config'",
    "system": "touch /usr/new || touch /new || touch /proc/sys/kernel/new || touch /dev/new",
}


def test_protected_files_cannot_be_changed(root: Path, repository: Path) -> None:
    tries = [f"({command}) && echo done {name}" for name, command in BYPASSING.items()]
    output = run_protected(root, repository, "; ".join([*tries, "echo over"]))
    assert "done" not in output
    assert "over" in output
    assert (repository / "config").read_text() == "own\n"


def test_protected_files_cannot_be_changed_from_inside_their_folder(
    root: Path, repository: Path
) -> None:
    command = "echo x >> config; echo x > hooks/new; echo x > fine; echo over"
    output = run_protected(root, repository, command, folder=repository)
    assert "over" in output
    assert (repository / "config").read_text() == "own\n"
    assert sorted(os.listdir(repository)) == ["HEAD", "config", "fine", "hooks", "objects", "refs"]
    assert os.listdir(repository / "hooks") == []


def test_a_protected_command_has_no_capabilities(root: Path, repository: Path) -> None:
    output = run_protected(
        root,
        repository,
        "touch made x/.git/made; grep -E '^(Cap|NoNew)' /proc/self/status /proc/1/status;"
        " unshare -U echo nested",
    )
    assert output.count("\t0000000000000000\n") == 10
    assert output.count("NoNewPrivs:\t1") == 2
    assert "nested" not in output or not find_support().abilities.no_nesting
    assert (root / "made").exists()
    assert (repository / "made").exists()


@pytest.mark.parametrize("link", ["OUTSIDE", "/oldroot/OUTSIDE", "/newroot/usr", "/usr", "DATA"])
def test_a_link_in_place_of_a_protected_folder_gives_no_access(
    root: Path, repository: Path, tmp_path: Path, link: str
) -> None:
    data, outside = root / "data", tmp_path / "outside"
    for folder in (data, outside):
        folder.mkdir()
        (folder / "config").write_text(SECRET)
    shutil.rmtree(repository)
    repository.symlink_to(link.replace("OUTSIDE", str(outside)).replace("DATA", str(data)))
    output = run_protected(
        root,
        repository,
        "cat x/.git/config data/config; echo x > x/.git/new; echo x > /usr/new; echo over",
        hidden=[data],
    )
    assert "over" in output
    assert SECRET not in output
    assert os.listdir(outside) == os.listdir(data) == ["config"]
    assert not Path("/usr/new").exists()


async def test_folders_above_a_hidden_data_folder_cannot_be_renamed(
    root: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = root / "a/b/data"
    inner.parent.mkdir(parents=True)
    os.rename(data, inner)
    set_loom(monkeypatch, data_dir=inner)
    output = await run_in(root, "mv a c; mv a/b c; cat a/b/data/*; touch a/b/made; echo over")
    assert output.endswith("over\n")
    assert SECRET not in output
    assert (inner / "secret_key").exists()
    assert (inner.parent / "made").exists()
