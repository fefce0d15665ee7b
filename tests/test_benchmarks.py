"""The benchmarks' calculations and command line. The measurements themselves run separately."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from time import sleep

import pytest
from django.core.management import call_command

from benchmarks.__main__ import NAMES, USUAL, main
from benchmarks.figures import Figure, markdown_table, median, percentile
from benchmarks.groups.imports import make_lines
from benchmarks.groups.sessions import count_sessions
from benchmarks.processes import clean_environment
from conversations.domain.turns import NewTurn

from .starting import Starts
from .test_docs import first_column, section


@pytest.mark.parametrize(
    ("count", "share", "rank"),
    [(1, 0.95, 1), (2, 0.5, 1), (20, 0.95, 19), (100, 0.95, 95), (100, 0.99, 99), (25, 0.95, 24)],
)
def test_a_percentile_is_computed_by_nearest_rank(count: int, share: float, rank: int) -> None:
    assert percentile(range(count, 0, -1), share) == rank
    assert percentile([], share) == 0


def test_the_median_of_an_even_count_is_the_mean_of_the_middle_two() -> None:
    assert (median([4, 1, 2, 9]), median([3, 1, 2]), median([])) == (3, 2, 0)
    runs = [[Figure(name="x", value=value, at_most=9)] for value in (2, 4)]
    assert "| x | ≤ 9 | 3 (2–4) |  |  |" in markdown_table(runs)


def test_a_session_that_is_named_several_times_is_counted_once() -> None:
    html = "".join(f"<li><a title='Session number {n}'>Session number {n}</a>" for n in (1, 2, 12))
    assert count_sessions(html) == 3


def test_generated_import_lines_have_the_rows_of_an_export() -> None:
    turns = [NewTurn(role="user", content="Roses?"), NewTurn(role="assistant", content="In May.")]
    lines = list(make_lines(turns * 3))
    assert Counter(line["type"] for line in lines) == {"session": 1, "turn": 6, "event": 9}
    events = [line for line in lines if line["type"] == "event"]
    assert [line["seq"] for line in events] == list(range(1, 10))
    assert [line["turn"] for line in events] == [1, 2, 2, 3, 4, 4, 5, 6, 6]
    assert events[1]["payload"] == {"v": 1, "text": "In May."}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", ","], "--only names no group"),
        (["--only", "moon"], "there is no group moon"),
        (["--runs", "0"], "--runs must be at least 1"),
        (["--json", "/nonexistent/x.json"], "/nonexistent/x.json: No such file or directory"),
        (["--markdown", "/"], "/: Is a directory"),
    ],
)
def test_invalid_arguments_are_refused_before_measuring(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.splitlines()[-1] == f"manage.py bench: error: {says}"


def test_the_command_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, command: given.append(command))
    monkeypatch.setattr(os, "chdir", lambda folder: None)
    call_command("bench", only="", markdown="/x.md", quick=True)
    options = ["--runs", "1", "--only", "", "--quick", "--markdown", "/x.md"]
    assert given == [[sys.executable, "-m", "benchmarks", *options]]


def test_a_stopped_bench_leaves_no_processes_or_files(tmp_path: Path, starts: Starts) -> None:
    env = clean_environment({"TMPDIR": str(tmp_path), "LOOM_DATA_DIR": str(tmp_path / "own")})
    command = [sys.executable, "manage.py", "bench", "--quick", "--only", "append"]
    bench = starts.popen(command, env=env, stdout=subprocess.PIPE)
    assert bench.stdout is not None
    assert f"this machine, with SQLite in {tmp_path}" in bench.stdout.readline()
    while not list(tmp_path.glob("loom-bench-*/server.log")):
        assert bench.poll() is None
        sleep(0.05)
    bench.send_signal(signal.SIGTERM)
    said, _ = bench.communicate()  # returns only after all processes have closed the pipe
    assert (said.strip(), bench.returncode) == ("", 128 + signal.SIGTERM)
    assert not list(tmp_path.glob("loom-bench-*"))


def test_every_group_is_described() -> None:
    docs = Path(__file__).parent.parent / "docs"
    described = section((docs / "performance.md").read_text(), "How to read the table")
    assert first_column(described) == set(USUAL)
    told = section((docs / "commands.md").read_text(), "bench").split("`--all` adds")[1]
    assert {name for name in NAMES if f"`{name}` (" in told} == set(NAMES) - set(USUAL)
