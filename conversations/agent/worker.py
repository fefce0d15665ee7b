"""Processes for work that could keep this one busy for ever: they can be ended."""

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .sandbox.supervise import OOM_SCORE


def start_worker(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """``options`` are those of ``Popen``; to be killed and waited for by whoever starts it."""
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
