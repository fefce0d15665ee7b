"""A full disk, on a small file system of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conversations.agent.sandbox.support import find_support
from tests.crash.scripts import ROOT

SIZE = 40 * 2**20


@pytest.mark.skipif("DATABASE_URL" in os.environ, reason="it has a data folder of its own")
def test_a_full_disk_is_reported_everywhere_and_loses_nothing(
    migrated: Path, tmp_path: Path
) -> None:
    """The script runs with a tmpfs on its folder, which only needs the rights for a sandbox."""
    if not (bwrap := find_support().bwrap):
        pytest.skip(f"NO SANDBOX HERE, so no small disk: {find_support().reason}")
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        [
            *(bwrap, "--dev-bind", "/", "/", "--size", str(SIZE), "--tmpfs", str(disk)),
            *("--die-with-parent", sys.executable, "-m", "tests.crash.fill_disk"),
            *("--folder", str(disk), "--database", str(migrated)),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
