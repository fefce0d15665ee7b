"""Model fields that convert their values, and fields that many models have."""

import os
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import models
from django.db.models.lookups import IContains

from conversations.domain.text import strip_invisible

if TYPE_CHECKING:
    from django.contrib.auth.models import User


class ShownField(models.CharField):  # type: ignore[type-arg]
    """A title or a name without invisible characters.

    The field removes them when a value is stored. It also removes them when a value is read,
    because older versions may have stored some.
    """

    def from_db_value(self, value: str | None, *_: Any) -> str | None:
        return value and strip_invisible(value)

    def get_prep_value(self, value: Any) -> Any:
        prepared = super().get_prep_value(value)
        return strip_invisible(prepared) if isinstance(prepared, str) else prepared

    def deconstruct(self) -> Any:
        # In the database it is an ordinary column.
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.CharField", args, kwargs


def locate_folder(stored: str) -> str:
    """Return the absolute path of a folder from the value that a ``FolderField`` stores."""
    return os.path.join(settings.LOOM.data_dir, stored)


class FolderField(models.CharField):  # type: ignore[type-arg]
    """The absolute path of a folder.

    A path in the data folder is stored relative to the data folder, so that a copy of the data
    folder uses its own folders.
    """

    def from_db_value(self, value: str | None, *_: Any) -> str | None:
        return value and locate_folder(value)

    def get_prep_value(self, value: Any) -> Any:
        prepared = super().get_prep_value(value)
        inside = f"{settings.LOOM.data_dir}{os.sep}"
        return prepared.removeprefix(inside) if isinstance(prepared, str) else prepared

    def deconstruct(self) -> Any:
        # In the database it is an ordinary column.
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.CharField", args, kwargs


@FolderField.register_lookup
class FolderContains(IContains):
    """A search for a part of the absolute path, which lists show."""

    prepare_rhs = True  # Django prepares no pattern as it prepares a stored value by default.


def actor_field(*, blank: bool = False) -> "models.ForeignKey[User | None, User | None]":
    """Return a field for the person who acted.

    Null stands for the server itself, or for a program without a person.
    """
    return models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=blank, on_delete=models.PROTECT, related_name="+"
    )
