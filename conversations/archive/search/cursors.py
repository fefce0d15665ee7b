"""Where a search goes on: after which hit, among which turns."""

import re
from dataclasses import dataclass

_FORM = re.compile(r"([a-z]+)((?:\.[0-9a-f]{1,20}){1,5})")


@dataclass(frozen=True, slots=True)
class SearchCursor:
    """Whole numbers of a page's last hit, for one ``kind`` of search."""

    kind: str
    numbers: tuple[int, ...]

    def __str__(self) -> str:
        return ".".join([self.kind, *(f"{number:x}" for number in self.numbers)])


def read_cursor(text: str, kind: str, *, count: int) -> tuple[int, ...] | None:
    """The numbers; None for no cursor, or one that is not for this search."""
    match = _FORM.fullmatch(text)
    if match is None or match[1] != kind:
        return None
    numbers = tuple(int(part, 16) for part in match[2].split(".")[1:])
    is_sane = len(numbers) == count and all(number < 1 << 63 for number in numbers)
    return numbers if is_sane else None
