"""The scripts of this folder as processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 400.0
"""Less than what a test may take, so that one that hangs still tells how far it came."""


def run_script(name: str, *arguments: str) -> str:
    """What it prints. What it leaves running ends with it, and none of that is waited for."""
    command = [sys.executable, "-m", f"tests.crash.{name}", *arguments]
    with TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=printed, stderr=printed, start_new_session=True
        )
        try:
            code: int | str = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            code = f"nothing after {SECONDS} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        printed.seek(0)
        text = printed.read()
    assert code == 0, f"{code}\n{text}"
    return text
