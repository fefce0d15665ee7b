"""What the commands of the product have in common."""

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, ProgrammingError, connection
from django.db.migrations.recorder import MigrationRecorder

from conversations.archive.storage_errors import translate_storage_error


class DatabaseCommand(BaseCommand):
    """A command that reads or writes the archive. In a data folder that is still empty it
    makes the database first, as ``serve`` does. One that is there is left as it is: a
    server of an older version may run on it."""

    def uses_database(self, options: dict[str, Any]) -> bool:
        return True

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            if self.uses_database(options) and not MigrationRecorder(connection).has_table():
                call_command("migrate", verbosity=0, interactive=False)
            return super().execute(*args, **options)
        except (OperationalError, ProgrammingError) as error:
            if (storage := translate_storage_error(error)) is not None:
                raise CommandError(storage.message) from error
            raise CommandError(
                f"The database cannot be used ({str(error).strip()}). If it is of an older "
                "version, run manage.py migrate."
            ) from error
