"""Running a command: its output, its limits and the end of all its processes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from conversations.agent.sandbox.command_run import KeptOutput, run_command
from conversations.agent.sandbox.supervise import (
    TICK_SECONDS,
    MemoryMeter,
    children,
    descendants,
    private_bytes,
)
from conversations.domain.errors import Rejected
from loomweb.env import BASE_DIR

from .processes import LONG, find_processes


@pytest.fixture
def root(root: Path) -> Path:
    """A folder with a repository, so that commands run with write protection."""
    for folder in ("objects", "refs"):
        (root / ".git" / folder).mkdir(parents=True)
    for name in ("HEAD", "config"):
        (root / ".git" / name).touch()
    return root


async def test_output_and_errors_come_in_order_with_the_exit_code(
    sh: Callable[..., Any], root: Path
) -> None:
    done = await sh("echo one; echo two >&2; printf 'thr\\303\\251\\0e'; touch made; exit 3")
    assert done.output == "one\ntwo\nthré\ufffde"
    assert (done.exit_code, done.reason) == (3, "")
    assert (root / "made").exists()


async def test_a_signal_is_an_exit_code_as_in_a_shell(sh: Callable[..., Any]) -> None:
    assert (await sh("kill -9 $$")).exit_code == 137


async def test_a_command_has_no_input(sh: Callable[..., Any]) -> None:
    assert (await sh("cat")).output == ""


async def test_a_command_runs_in_its_folder_and_finds_python(
    sh: Callable[..., Any], root: Path
) -> None:
    (root / "sub").mkdir()
    done = await sh("pwd; python3 -c 'print(6 * 7)'", folder=root / "sub")
    assert done.output == f"{root}/sub\n42\n"


async def test_output_is_reported_while_the_command_runs(
    sh: Callable[..., Any], root: Path
) -> None:
    said: list[str] = []

    def report(text: str) -> None:
        said.append(text)
        (root / "heard").touch()

    script = "echo first; until [ -e heard ]; do sleep 0.01; done; echo second"
    done = await sh(script, report=report)
    assert done.exit_code == 0
    assert said[0] == "first\n"
    assert "".join(said) == done.output == "first\nsecond\n"


async def test_long_output_keeps_its_beginning_and_its_end(sh: Callable[..., Any]) -> None:
    said: list[str] = []
    done = await sh("seq 400000", output_bytes=1000, report=said.append)
    assert done.exit_code == 0
    assert done.output.startswith("1\n2\n3\n")
    assert done.output.endswith("399999\n400000\n")
    assert "bytes left out …]" in done.output
    assert len(done.output) < 1100
    assert sum(map(len, said)) < 600_000


async def test_reports_of_long_output_contain_its_end_and_the_omitted_bytes(
    sh: Callable[..., Any],
) -> None:
    said: list[str] = []
    script = f"seq 400000; echo the last line; sleep {LONG}"
    running = asyncio.create_task(sh(script, output_bytes=1000, report=said.append))
    async with asyncio.timeout(60):
        while "the last line" not in "".join(said):
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "bytes left out" in "".join(said)
    assert "".join(said).endswith("400000\nthe last line\n")


def test_invalid_bytes_become_replacement_characters() -> None:
    output = KeptOutput(head=5, tail=5)
    output.add(b"caf\xe9s" + b"-" * 20 + b"caf\xe9s")
    assert output.text() == "caf\ufffds\n[… 20 bytes left out …]\ncaf\ufffds"


def test_a_cut_character_is_left_out_and_every_byte_counted() -> None:
    output = KeptOutput(head=5, tail=5)
    for byte in "ééééé·ééééé".encode():
        output.add(bytes([byte]))
    assert output.text() == "éé\n[… 12 bytes left out …]\néé"
    assert output.left_out == 12


async def test_timeout_kills_a_command_that_ignores_sigterm(sh: Callable[..., Any]) -> None:
    done = await sh(f"echo begun; trap '' TERM; while :; do sleep {LONG}; done", seconds=0.5)
    assert (done.exit_code, done.reason, done.output) == (None, "time", "begun\n")
    assert not find_processes(f"sleep {LONG}")


async def test_a_command_may_clean_up_on_sigterm(sh: Callable[..., Any]) -> None:
    script = f"trap 'echo tidied; exit 0' TERM; echo begun; sleep {LONG} & wait"
    assert (await sh(script, seconds=0.5)).output == "begun\ntidied\n"


async def test_background_processes_are_ended_with_the_command(
    sh: Callable[..., Any], root: Path
) -> None:
    done = await sh(f"(setsid nohup sh -c 'sleep {LONG}; touch late' >/dev/null 2>&1 &); echo done")
    assert (done.output, done.exit_code) == ("done\n", 0)
    assert not find_processes(f"sleep {LONG}")


async def test_cancelling_ends_all_processes_before_it_returns(sh: Callable[..., Any]) -> None:
    said, before = asyncio.Event(), descendants(os.getpid())
    script = f"setsid sleep {LONG} & trap '' TERM; echo begun; while :; do sleep {LONG}; done"
    running = asyncio.create_task(sh(script, report=lambda text: said.set()))
    await asyncio.wait_for(said.wait(), 60)
    running.cancel()
    await asyncio.sleep(0.01)
    running.cancel()  # a second cancellation must not leave processes behind either
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not find_processes(f"sleep {LONG}")
    assert not set(descendants(os.getpid())) - set(before)


async def test_too_many_processes_end_the_command(sh: Callable[..., Any]) -> None:
    done = await sh(
        f"i=0; while [ $i -lt 60 ]; do sleep {LONG} & i=$((i+1)); done; wait", processes=40
    )
    assert done.reason == "processes"
    assert not find_processes(f"sleep {LONG}")


async def test_memory_is_limited_for_one_process_and_for_all_together(
    sh: Callable[..., Any],
) -> None:
    limit = 96 * 2**20
    alone = await sh("python3 -c 'bytearray(200 * 2**20)'", memory_bytes=limit)
    assert "MemoryError" in alone.output
    hog = f"python3 -c 'import time; x = bytearray(60 * 2**20); time.sleep({LONG})'"
    together = await sh(f"{hog} & {hog} & {hog} & wait", memory_bytes=limit)
    assert together.reason == "memory"


SHARED = """python3 -c "
import mmap, time
memory = mmap.mmap(-1, 300 << 20)
for at in range(0, len(memory), 1 << 20): memory[at : at + (1 << 20)] = bytes(1 << 20)
time.sleep(LONG)
" """
NAMELESS = """python3 -c "
import os, time
for name in range(6): os.write(os.memfd_create(str(name)), bytes(50 << 20))
time.sleep(LONG)
" """


@pytest.mark.parametrize("text", [SHARED, NAMELESS], ids=["shared", "nameless"])
async def test_shared_and_anonymous_file_memory_counts(sh: Callable[..., Any], text: str) -> None:
    done = await sh(text.replace("LONG", str(LONG)), memory_bytes=200 * 2**20)
    assert done.reason == "memory"


KEPT = """python3 -c "
import ctypes
take = ctypes.CDLL(None).shmget
take.argtypes = (ctypes.c_int, ctypes.c_size_t, ctypes.c_int)
print([take(0, size, 0o1600) >= 0 for size in (4096, 1 << 20, 1 << 33)])
" """


async def test_memory_that_outlives_its_process_is_refused(sh: Callable[..., Any]) -> None:
    assert (await sh(KEPT)).output.strip() == "[True, False, False]"


async def test_memory_that_processes_share_counts_once(sh: Callable[..., Any]) -> None:
    many = "[os.fork() for _ in range(2)]; print(max(memory[::4096])); time.sleep(1)"
    text = SHARED.replace("time.sleep(LONG)", many).replace("mmap,", "mmap, os,")
    # Files in /tmp have a limit of their own.
    done = await sh(f"head -c 100M /dev/zero > /tmp/x; {text}", memory_bytes=400 * 2**20)
    assert (done.reason, done.exit_code) == ("", 0)


def test_memory_is_not_exceeded_if_processes_end_while_it_is_measured(root: Path) -> None:
    text = SHARED.removeprefix('python3 -c "').removesuffix('" ').replace("time.sleep(LONG)", "")
    script = text.replace("300 << 20", "100 << 20") + "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        limit = (100 << 20) + 2 * private_bytes(process.pid)
        # The process that is left has all of the memory that the ended ones shared with it.
        counted_again = [process.pid] * 3
        for second, exceeded in (([process.pid], False), (counted_again, True)):
            memory = MemoryMeter(limit)
            assert not memory.exceeded(counted_again)
            time.sleep(TICK_SECONDS)
            assert memory.exceeded(second) == exceeded
        process.communicate(b"\n")


async def test_the_size_of_a_file_is_limited(sh: Callable[..., Any], root: Path) -> None:
    await sh("head -c 3000000 /dev/zero > big", file_bytes=10**6)
    assert (root / "big").stat().st_size == 10**6


async def test_a_folder_that_is_a_link_or_missing_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    for folder in (tmp_path / "link", tmp_path / "none", Path("/")):
        with pytest.raises(Rejected):
            await run_command(["true"], root=folder)
    with pytest.raises(Rejected, match="cannot be started"):
        await run_command(["x" * 300_000], root=root)


async def test_a_command_dies_with_its_supervisor(sh: Callable[..., Any]) -> None:
    def kill_supervisor(text: str) -> None:
        [supervisor] = [pid for pid in children(os.getpid()) if is_supervisor(pid)]
        os.kill(supervisor, signal.SIGKILL)

    script = f"(setsid sleep {LONG} &); echo begun; trap '' TERM; while :; do sleep {LONG}; done"
    done = await sh(script, report=kill_supervisor)
    assert (done.exit_code, done.reason) == (None, "lost")
    await _until_gone(f"sleep {LONG}")


def is_supervisor(pid: int) -> bool:
    return b"supervise.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_commands_run_on_the_servers_event_loop(root: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        done = runner.run(run_command(["/bin/echo", "hello"], root=root))
    assert (done.output, done.exit_code) == ("hello\n", 0)


KILLED = """
import asyncio, pathlib
from conversations.agent.sandbox.command_run import run_command
def report(text): print(text, end="", flush=True)
asyncio.run(run_command({command!r}, root=pathlib.Path({root!r}), report=report))
"""


def test_a_killed_server_leaves_no_processes(root: Path, tmp_path: Path) -> None:
    command = ["/bin/sh", "-c", f"trap '' TERM; (setsid sleep {LONG} &); echo begun; sleep {LONG}"]
    server = subprocess.Popen(
        [sys.executable, "-c", KILLED.format(command=command, root=str(root))],
        cwd=BASE_DIR,
        env={"DJANGO_SETTINGS_MODULE": "tests.settings", "LOOM_DATA_DIR": str(tmp_path / "data")},
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    with server.stdout:
        assert server.stdout.readline() == b"begun\n"
        server.send_signal(signal.SIGKILL)
        server.wait()
    asyncio.run(_until_gone(f"sleep {LONG}"))


async def _until_gone(marker: str) -> None:
    async with asyncio.timeout(60):
        while find_processes(marker):
            await asyncio.sleep(0.05)


MIB = 2**20


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("for i in $(seq 30); do head -c 1048576 /dev/zero > f$i; done", id="files"),
        pytest.param("for i in $(seq 30); do fallocate -l 1M f$i; done", id="allocated"),
        pytest.param(
            "python3 -c \"import os, time; held = [open(f'f{i}', 'wb') for i in range(30)];"
            " [(os.unlink(file.name), file.write(bytes(1 << 20)), file.flush()) for file in held];"
            ' time.sleep(60)"',
            id="removed-but-open",
        ),
        pytest.param(
            'mkdir d; touch -d 2001-01-01 d; python3 -c "import os, time;'
            " [os.utime(open(f'd/{i}', 'wb', 0).write(bytes(1 << 20)) and f'd/{i}', (0, 0))"
            ' for i in range(30)]"',
            id="old-times",
        ),
    ],
)
async def test_all_files_of_a_command_count_together(sh: Callable[..., Any], way: str) -> None:
    done = await sh(f"{way}; sleep 60", written_bytes=10 * MIB)
    assert (done.exit_code, done.reason) == (None, "written")


async def test_files_that_others_write_meanwhile_do_not_count(
    sh: Callable[..., Any], tmp_path: Path
) -> None:
    """The command is not ended, although the disk loses more space than the command may use.

    Because of the loss, the command's own files are measured.
    """
    script = "head -c 1048576 /dev/zero > own; until [ -e go ]; do sleep 0.01; done; sleep 0.5"
    running = asyncio.create_task(sh(script, written_bytes=10 * MIB))
    while not (tmp_path / "workspace" / "own").exists():
        await asyncio.sleep(0.01)
    (tmp_path / "others").write_bytes(os.urandom(30 * MIB))
    (tmp_path / "workspace" / "go").touch()
    done = await running
    assert (done.exit_code, done.reason) == (0, "")


@pytest.mark.parametrize("way", ["mv big moved", "chmod -R go-w .", "echo more >> big"])
async def test_the_earlier_size_of_a_changed_file_does_not_count(
    sh: Callable[..., Any], root: Path, tmp_path: Path, way: str
) -> None:
    (root / "big").write_bytes(os.urandom(20 * MIB))
    await asyncio.sleep(0.1)  # until the clock of file times has ticked
    script = f"{way}; touch done; until [ -e go ]; do sleep 0.01; done; sleep 0.5"
    running = asyncio.create_task(sh(script, written_bytes=10 * MIB))
    while not (root / "done").exists():
        await asyncio.sleep(0.01)
    (tmp_path / "others").write_bytes(os.urandom(30 * MIB))  # so that files are measured at all
    (root / "go").touch()
    done = await running
    assert (done.exit_code, done.reason) == (0, "")


async def test_the_growth_of_an_existing_file_counts(sh: Callable[..., Any], root: Path) -> None:
    (root / "big").write_bytes(os.urandom(20 * MIB))
    script = "head -c 15M /dev/urandom >> big; sleep 60"
    done = await sh(script, written_bytes=10 * MIB)
    assert (done.exit_code, done.reason) == (None, "written")


async def test_a_command_is_ended_when_the_disk_is_nearly_full(sh: Callable[..., Any]) -> None:
    done = await sh("sleep 60", min_free_bytes=2**62)
    assert (done.exit_code, done.reason) == (None, "disk")


async def test_a_read_only_command_continues_on_a_nearly_full_disk(
    sh: Callable[..., Any],
) -> None:
    done = await sh("sleep 0.3", min_free_bytes=2**62, protection=None)
    assert (done.exit_code, done.reason) == (0, "")
