"""System checks, which run before the server starts."""

from collections.abc import Iterable, Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connections

from conversations.models.guards import missing_guards


@register(Tags.database)
def check_archive_guards(
    *,
    app_configs: Sequence[AppConfig] | None = None,
    databases: Iterable[str] | None = None,
    **_: Any,
) -> list[CheckMessage]:
    """Check that every database with the archive's tables has the archive's triggers."""
    return [
        Error(
            f"The archive is not protected: triggers {', '.join(missing)} are missing on '"
            f"{alias}'.",
            hint="Run manage.py migrate to restore the triggers.",
            id="conversations.E001",
        )
        for alias in databases or ()
        if "conversations_turn" in connections[alias].introspection.table_names()
        and (missing := missing_guards(connections[alias]))
    ]
