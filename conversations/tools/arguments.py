"""Reading what a model sent as arguments, with sentences that tell it what to send."""

from dataclasses import dataclass
from typing import Any


class BadArgument(ValueError):
    """An argument cannot be used; the text says what to send instead."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call. What is absent, null or empty counts as not given."""

    values: dict[str, Any]

    def text(self, name: str) -> str:
        """The text without space around it, empty if there is none."""
        value = self.values.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise BadArgument(f"'{name}' must be a text.")
        return value.strip()

    def number(self, name: str, *, lowest: int = 1) -> int | None:
        """A whole number from ``lowest`` on; digits in a text are taken too."""
        value = self.values.get(name)
        if value is None or value == "":
            return None
        if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
            value = int(value.strip()[:18])
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise BadArgument(f"'{name}' must be a whole number from {lowest} on.")
        return min(value, 10**15)

    def exact(self, *names: str) -> str | None:
        """The text as it was sent, under the first of these names that is there."""
        name = next((name for name in names if self.values.get(name) is not None), None)
        if name is None:
            return None
        value = self.values[name]
        if not isinstance(value, str):
            raise BadArgument(f"'{name}' must be a text.")
        return value

    def path(self, name: str, *others: str, default: str | None = None) -> str:
        """A path as it was sent; names of files may begin or end with a space."""
        value = self.exact(name, *others)
        if value is None or not value.strip():
            value = default
        if value is None:
            raise BadArgument(f"'{name}' must be a path inside the workspace's folder.")
        return value

    def flag(self, name: str) -> bool:
        """Whether it is given and true."""
        value = self.values.get(name)
        if isinstance(value, str) and value.strip().lower() in ("true", "false", ""):
            return value.strip().lower() == "true"
        if value is not None and not isinstance(value, bool):
            raise BadArgument(f"'{name}' must be true or false.")
        return bool(value)
