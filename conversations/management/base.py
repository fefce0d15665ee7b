"""Shared code of the management commands."""

import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, TextIO

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from conversations import migrations
from conversations.archive.storage import MIB, free_bytes, min_free_bytes, translate_storage_error
from conversations.domain.errors import LoomError, StorageFull
from conversations.domain.text import visible

# On a read-only data folder, commands run without the lock, because no other process can prepare
# it.
READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}


def describe_storage_error(error: Exception) -> str:
    """Return one line for the administrator, with the driver's reason; "" for another error."""
    translated = translate_storage_error(error)
    if translated is None:
        return ""
    if isinstance(translated, StorageFull):
        return translated.message
    return f"The database is not responding: {str(error).strip().partition('\n')[0]}"


def shown(stream: OutputWrapper, text: str) -> str:
    """Return text of models, tools and servers as it is printed.

    At a terminal, characters that the terminal would act on are replaced. In a pipe, the text is
    unchanged."""
    return visible(text) if stream.isatty() else text


@contextmanager
def migrating_alone() -> Iterator[None]:
    """Hold the lock that keeps other commands and servers from preparing the same data folder.

    Raise CommandError if the lock cannot be acquired."""
    # NFS grants a lock only on a file that is open for writing, and a folder cannot be.
    path = settings.LOOM.data_dir / "prepare.lock"
    with ExitStack() as held:
        try:
            fcntl.flock(held.enter_context(path.open("w")), fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise CommandError(f"{path}: {error.strerror}.") from error
        yield


def refuse_newer_database() -> None:
    """Raise CommandError if a newer version has migrated the database."""
    own = {module.name for module in iter_modules(migrations.__path__)}
    recorded = MigrationRecorder(connection).applied_migrations()
    applied = {name: row.pk for (app, name), row in recorded.items() if app == "conversations"}
    last_own = max((pk for name, pk in applied.items() if name in own), default=0)
    # Migrations of older versions may have no file any more, and any number. They were applied
    # before the last one of this version, or have lower numbers.
    for name, pk in applied.items():
        if name > max(own) and pk > last_own:
            raise CommandError(
                f"This database was made by a newer version of Loom Web (migration {name}). Use "
                "that version, or restore a backup that this version has made."
            )


def refuse_older_database() -> None:
    """Raise CommandError if the database lacks migrations of this version."""
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    # A database without any migrations is not an older one.
    if missing and executor.loader.applied_migrations:
        raise CommandError(
            f"This database lacks migrations of this version, such as {missing[0][0]}. Stop its "
            "other processes and run manage.py migrate."
        )


STANDARD_OUTPUT = "standard output"


class StandardOutput(OutputWrapper):
    """Standard output. If it cannot be written, this is not an error of the server's disk."""

    def write(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]  # as in Django
        with _naming_output(STANDARD_OUTPUT):
            super().write(*args, **kwargs)

    def flush(self) -> None:
        with _naming_output(STANDARD_OUTPUT):
            super().flush()


@contextmanager
def _naming_output(where: str) -> Iterator[None]:
    """Raise CommandError for an output that cannot be written, except for a closed pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        is_named_wrongly = isinstance(
            error, FileNotFoundError | NotADirectoryError | IsADirectoryError
        )
        raise CommandError(
            f"{where}: {error.strerror or error}", returncode=2 if is_named_wrongly else 1
        ) from error


class DatabaseCommand(BaseCommand):
    """A command that reads or writes the archive.

    If the data folder is still empty, the command makes the database first, as ``serve`` does. An
    existing database is left as it is, because a server of an older version may run on it. That of
    a newer version is refused.

    A LoomError ends the command with its message and exit code 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.stdout = StandardOutput(sys.stdout)

    def uses_database(self, options: dict[str, Any]) -> bool:
        return True

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            if self.uses_database(options):
                # The check needs the lock too, because another command may have made a part of the
                # tables.
                with migrating_alone():
                    if not connection.introspection.table_names():
                        call_command("migrate", verbosity=0, interactive=False)
                refuse_newer_database()
            output = super().execute(*args, **options)
            self.stdout.flush()
            return output
        except LoomError as error:
            raise CommandError(shown(self.stderr, error.message), returncode=2) from error
        except BrokenPipeError:
            # The reader of the output has closed the pipe. The interpreter must not flush again.
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
    """Raise CommandError if an option is given with an empty value.

    An empty value, as from an unset variable of a script, would count as not given."""
    for name, value in options.items():
        if value == "":
            raise CommandError(f"--{name.replace('_', '-')} is empty.", returncode=2)


def read_lines() -> Iterator[str]:
    """Yield the lines of standard input, without line ends.

    Bytes that are not UTF-8 become U+FFFD."""
    for line in getattr(sys.stdin, "buffer", sys.stdin):
        text = line.decode(errors="replace") if isinstance(line, bytes) else line
        yield text.rstrip("\r\n")


@contextmanager
def open_output(output: str | None, stdout: Any) -> Iterator[TextIO]:
    """Open a file or standard output for text as UTF-8, whatever the locale.

    A file appears under its name only when it is complete, and is readable by its owner alone.
    Raise CommandError if it cannot be written, with exit code 2 if the folder does not exist."""
    with _naming_output(output or STANDARD_OUTPUT), _open_output(output, stdout) as stream:
        yield stream


@contextmanager
def _open_output(output: str | None, stdout: Any) -> Iterator[TextIO]:
    if output is not None:
        path = Path(output)
        if path.exists() and not path.is_file():  # A pipe or a device, which must not be replaced.
            with path.open("w", encoding="utf-8", newline="\n") as file:
                yield file
            return
        # A file on another disk is written even if the server's disk is full.
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
        stdout.ending = ""  # Otherwise each piece would become a line.
    yield stdout
