"""What the commands of the product have in common."""

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, ProgrammingError, connection

from conversations.archive.storage_errors import translate_storage_error
from conversations.domain.errors import StorageFull


def describe_storage_error(error: Exception) -> str:
    """One line for whoever runs the server, with the driver's reason; empty for another error."""
    translated = translate_storage_error(error)
    if translated is None:
        return ""
    if isinstance(translated, StorageFull):
        return translated.message
    return f"The database does not answer: {str(error).strip().partition('\n')[0]}"


class DatabaseCommand(BaseCommand):
    """A command that reads or writes the archive. In a data folder that is still empty it
    makes the database first, as ``serve`` does. One that is there is left as it is: a
    server of an older version may run on it."""

    def uses_database(self, options: dict[str, Any]) -> bool:
        return True

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            if self.uses_database(options) and not connection.introspection.table_names():
                call_command("migrate", verbosity=0, interactive=False)
            return super().execute(*args, **options)
        except (OperationalError, ProgrammingError) as error:
            if sentence := describe_storage_error(error):
                raise CommandError(sentence) from error
            raise CommandError(
                f"The database cannot be used ({str(error).strip()}). If it is of an older "
                "version, run manage.py migrate."
            ) from error
