"""Pages of lists, by keyset: a cursor names a row, and which way to go from it."""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ninja import Field, Schema

from conversations.archive.turns import MAX_PAGE
from conversations.domain.errors import Rejected

_NUMBER = re.compile(r"\d{1,18}")


class Paging(Schema):
    """What every list takes."""

    limit: int = Field(50, ge=1, le=MAX_PAGE, description="Items of a page.")
    cursor: str = Field(
        "", max_length=400, description="`next` or `previous` of another page of this list."
    )


@dataclass(frozen=True, slots=True)
class PageRequest:
    """From which row to go (empty: from the end of the list) and which way."""

    limit: int
    place: str = ""
    is_back: bool = False


def walk_of(paging: Paging) -> PageRequest:
    """Raises Rejected for what is no cursor."""
    if not paging.cursor:
        return PageRequest(paging.limit)
    try:
        way, place = urlsafe_b64decode(paging.cursor.encode() + b"==").decode().split(" ", 1)
    except ValueError as error:
        raise bad_cursor() from error
    if way not in ("next", "previous") or not place or not place.isascii():
        raise bad_cursor()
    return PageRequest(paging.limit, place, way == "previous")


def bad_cursor() -> Rejected:
    return Rejected("This is not a cursor of this list.", code="bad_cursor")


def number_of(place: str) -> int:
    """The row of a list that is in the order of numbers. Raises Rejected."""
    if not _NUMBER.fullmatch(place):
        raise bad_cursor()
    return int(place)


def make_page[T](
    walk: PageRequest, found: list[T], *, as_item: Callable[[T], Any], place_of: Callable[[T], str]
) -> dict[str, Any]:
    """``found``: what stands there in the order of walking, one more than the limit if
    there is more."""
    shown = found[: walk.limit]
    goes_on, came = len(found) > walk.limit, bool(walk.place)
    if walk.is_back:
        shown.reverse()
    before, after = (goes_on, came) if walk.is_back else (came, goes_on)
    return {
        "items": [as_item(one) for one in shown],
        "next": make_cursor("next", place_of(shown[-1])) if shown and after else None,
        "previous": make_cursor("previous", place_of(shown[0])) if shown and before else None,
    }


def make_cursor(way: str, place: str) -> str:
    """To another page: ``next`` or ``previous``, from a row on."""
    return urlsafe_b64encode(f"{way} {place}".encode()).decode().rstrip("=")
