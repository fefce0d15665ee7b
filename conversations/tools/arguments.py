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

    def number(self, name: str) -> int | None:
        """A whole number from 1 on; digits in a text are taken too."""
        value = self.values.get(name)
        if value is None or value == "":
            return None
        if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
            value = int(value.strip()[:18])
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadArgument(f"'{name}' must be a whole number from 1 on.")
        return min(value, 10**15)
