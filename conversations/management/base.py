"""What the commands of the product have in common."""

import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import DatabaseError, connection

from conversations.archive.storage import MIB, free_bytes, min_free_bytes, translate_storage_error
from conversations.domain.errors import LoomError, StorageFull
from conversations.domain.text import visible

# What can only be read nobody prepares.
READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}


def describe_storage_error(error: Exception) -> str:
    """One line for whoever runs the server, with the driver's reason; empty for another error."""
    translated = translate_storage_error(error)
    if translated is None:
        return ""
    if isinstance(translated, StorageFull):
        return translated.message
    return f"The database is not responding: {str(error).strip().partition('\n')[0]}"


def shown(stream: OutputWrapper, text: str) -> str:
    """What models, tools and servers have said, as it is in a pipe, and at a terminal without
    what that would act on."""
    return visible(text) if stream.isatty() else text


@contextmanager
def migrating_alone() -> Iterator[None]:
    """No other command or server on this data folder migrates or prepares it meanwhile.
    Raises CommandError where the lock cannot be had."""
    # NFS gives no lock on what is not open for writing, which a folder cannot be.
    path = settings.LOOM.data_dir / "prepare.lock"
    with ExitStack() as held:
        try:
            fcntl.flock(held.enter_context(path.open("w")), fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise CommandError(f"{path}: {error.strerror}.") from error
        yield


class DatabaseCommand(BaseCommand):
    """A command that reads or writes the archive. In a data folder that is still empty it
    makes the database first, as ``serve`` does. One that is there is left as it is: a
    server of an older version may run on it.

    A LoomError ends it with its message and the code 2."""

    def uses_database(self, options: dict[str, Any]) -> bool:
        return True

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            if self.uses_database(options):
                with migrating_alone():  # to look, too: another command may have made a part
                    if not connection.introspection.table_names():
                        call_command("migrate", verbosity=0, interactive=False)
            return super().execute(*args, **options)
        except LoomError as error:
            raise CommandError(shown(self.stderr, error.message), returncode=2) from error
        except BrokenPipeError:
            # Whoever reads has had enough; the interpreter must not flush again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None
        except DatabaseError as error:
            if sentence := describe_storage_error(error):
                raise CommandError(sentence) from error
            raise CommandError(
                f"The database cannot be used ({str(error).strip()}). If it was created by an "
                "older version, run manage.py migrate."
            ) from error


def refuse_empty(**options: str | None) -> None:
    """An option that is given empty, as from a variable of a script that is not set, would count
    as not given. Raises CommandError."""
    for name, value in options.items():
        if value == "":
            raise CommandError(f"--{name.replace('_', '-')} is empty.", returncode=2)


def read_lines() -> Iterator[str]:
    """Those of standard input, without their ends; what is not UTF-8 in them becomes U+FFFD."""
    for line in getattr(sys.stdin, "buffer", sys.stdin):
        text = line.decode(errors="replace") if isinstance(line, bytes) else line
        yield text.rstrip("\r\n")


@contextmanager
def open_output(output: str | None, stdout: Any) -> Iterator[TextIO]:
    """Text as UTF-8, whatever the locale. A file appears under its name only when it
    is whole, and is readable by its owner alone. Raises CommandError where it cannot be written;
    its code is 2 where the folder does not exist."""
    try:
        with _open_output(output, stdout) as stream:
            yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        is_named_wrongly = isinstance(
            error, FileNotFoundError | NotADirectoryError | IsADirectoryError
        )
        where = output or "standard output"
        raise CommandError(
            f"{where}: {error.strerror or error}", returncode=2 if is_named_wrongly else 1
        ) from error


@contextmanager
def _open_output(output: str | None, stdout: Any) -> Iterator[TextIO]:
    if output is not None:
        path = Path(output)
        if path.exists() and not path.is_file():  # a pipe or a device, which is there to stay
            with path.open("w", encoding="utf-8", newline="\n") as file:
                yield file
            return
        # A file for another disk is written however full the server's own is.
        free, wanted = free_bytes(path.absolute().parent), min_free_bytes()
        if free < wanted:
            raise CommandError(
                f"Only {free // MIB} MiB are free on the disk of {path}; {wanted // MIB} MiB "
                "are reserved for messages (LOOM_MIN_FREE_MIB)."
            )
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
