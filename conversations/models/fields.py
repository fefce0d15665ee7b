"""Columns with a rule of their own, and those that many tables have."""

import os
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import models
from django.db.models.lookups import IContains

from conversations.domain.text import strip_invisible

if TYPE_CHECKING:
    from django.contrib.auth.models import User


class ShownField(models.CharField):  # type: ignore[type-arg]
    """A title or a name. Characters that do not show are neither stored nor given: what an
    older version has stored has none either when it is read."""

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
    """The absolute path of a folder as a ``FolderField`` stores it."""
    return os.path.join(settings.LOOM.data_dir, stored)


class FolderField(models.CharField):  # type: ignore[type-arg]
    """The absolute path of a folder. One in the data folder is stored relative to it: a copy
    of the data folder works on its own folders."""

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
    """A list shows the whole path, and is searched by it."""

    prepare_rhs = True  # a pattern is not prepared as what is stored


def actor_field(*, blank: bool = False) -> "models.ForeignKey[User | None, User | None]":
    """Who did it. Null: the server itself, or a program without a person."""
    return models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=blank, on_delete=models.PROTECT, related_name="+"
    )
