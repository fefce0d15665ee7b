"""Separate processes for work of unbounded time or memory: they are limited and can be killed."""

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

logger = logging.getLogger(__name__)

# When memory is short, the kernel kills these processes before the server, like commands
# (``agent/sandbox/supervise``).
OOM_SCORE = b"500"

MAX_SECONDS = 30.0
# At most two processes of each program run at a time, because each may take much memory. Each
# program has its own limit, so that other kinds of file do not wait for a PDF, whose pages may take
# up to MAX_SECONDS.
_slots = {name: BoundedSemaphore(2) for name in ("clean_pages.py", "draw_pdf.py", "lex_code.py")}


def start_program(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process with the ``options`` of ``Popen``.

    The caller has to kill it and wait for it."""
    process = subprocess.Popen(  # noqa: S603 (programs of ours or ripgrep, no shell)
        command,
        env={"LC_ALL": "C.UTF-8"},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        **options,
    )
    with suppress(OSError):
        Path(f"/proc/{process.pid}/oom_score_adj").write_bytes(OOM_SCORE)
    return process


def ask_program(program: Path, *arguments: int, data: bytes, seconds: float) -> bytes:
    """Return a program's output for the input ``data``.

    May raise OSError or SubprocessError: TimeoutExpired if it takes too much time or memory."""
    command = [sys.executable, "-I", str(program), *map(str, arguments)]
    with start_program(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            output, _ = process.communicate(data, seconds)
        except BaseException:
            process.kill()
            raise
    # The kernel kills a program at its limit of processor time, and when memory is short. Native
    # code aborts at the limit of memory.
    if process.returncode in (-signal.SIGKILL, -signal.SIGABRT):
        raise subprocess.TimeoutExpired(command, seconds)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return output


def run_program(name: str, *arguments: int, data: bytes) -> Any:
    """Return the JSON output of a program of this package for the input ``data``.

    Return {} if the program fails. Return None if it takes too much time or memory, or the programs
    before it take too long."""
    program = Path(__file__).with_name(name)
    try:
        if not _slots[name].acquire(timeout=MAX_SECONDS):
            raise TimeoutError
        try:
            return json.loads(ask_program(program, *arguments, data=data, seconds=MAX_SECONDS))
        finally:
            _slots[name].release()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        logger.info("preview_failed", extra={"fields": {"error": type(error).__name__}})
        return None if isinstance(error, TimeoutError | subprocess.TimeoutExpired) else {}
