"""Programs for what native code does with files of others, which may take any time or memory."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

logger = logging.getLogger(__name__)

MAX_SECONDS = 30.0
_running = BoundedSemaphore(2)
"""Programs at a time: each may take much memory."""


def run_program(name: str, *arguments: int, data: bytes) -> Any:
    """What the program of this package makes of ``data``, as JSON; None where it fails."""
    program = Path(__file__).with_name(name)
    try:
        with _running:
            done = subprocess.run(  # noqa: S603 (our own program)
                [sys.executable, "-I", str(program), *map(str, arguments)],
                input=data,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=MAX_SECONDS,
                env={},
                check=True,
            )
        return json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        logger.info("preview_failed", extra={"fields": {"error": type(error).__name__}})
        return None
