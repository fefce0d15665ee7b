"""Pages of a PDF as pictures."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from threading import BoundedSemaphore
from typing import NamedTuple

logger = logging.getLogger(__name__)

PAGE_PIXELS = 1200
"""The width of a drawn page: sharp on a screen of twice the density at most of a column."""
MAX_SECONDS = 30.0
_drawing = BoundedSemaphore(2)
"""Programs at a time: each may take much memory."""


class DrawnPages(NamedTuple):
    """``total`` is how many the file has, ``pages`` those that were drawn: each the base64 of a
    WebP."""

    total: int
    pages: list[str]


def draw_pages(data: bytes, *, first: int, count: int) -> DrawnPages | None:
    """The pages from ``first`` (the first is 1) on; None for what cannot be read."""
    program = Path(__file__).with_name("draw_pdf.py")
    try:
        with _drawing:
            done = subprocess.run(  # noqa: S603 (our own program)
                [sys.executable, "-I", str(program), str(first), str(count), str(PAGE_PIXELS)],
                input=data,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=MAX_SECONDS,
                env={},
                check=True,
            )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        logger.info("preview_failed", extra={"fields": {"error": type(error).__name__}})
        return None
    return DrawnPages(found["total"], found["pages"]) if found else None
