"""Where a command writes a file, or standard output."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from django.core.management.base import CommandError, OutputWrapper

from conversations.archive.disk_space import MIB, free_bytes, min_free_bytes


def _require_space(path: Path) -> None:
    """A file for another disk is written however full the server's own is. Raises
    CommandError."""
    free, wanted = free_bytes(path.absolute().parent), min_free_bytes()
    if free < wanted:
        raise CommandError(
            f"Only {free // MIB} MiB are free where {path} would lie, and "
            f"{wanted // MIB} MiB are left for messages (LOOM_MIN_FREE_MIB)."
        )


@contextmanager
def open_output(output: str | None, stdout: Any) -> Iterator[TextIO]:
    """Text as UTF-8, whatever the locale. A file appears under its name only when it
    is whole, and is readable by its owner alone."""
    if output is not None:
        path = Path(output)
        _require_space(path)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return
    if hasattr(stdout, "buffer"):
        with open(os.dup(stdout.fileno()), "w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    if isinstance(stdout, OutputWrapper):
        stdout.ending = ""  # or it would make each piece a line
    yield stdout
