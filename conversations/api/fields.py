"""Values that requests give: what each may be, as the description says it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ninja import Field, Schema
from ninja.params.functions import Header
from pydantic import AfterValidator, AwareDatetime, StringConstraints

from conversations.archive.sessions import MAX_TITLE_CHARS
from conversations.archive.turns import MAX_PAGE_ROWS
from conversations.domain.keyset import PageCursor, parse_optional_number, parse_page_cursor
from conversations.domain.session_keys import MEMBER_CHANNELS
from conversations.domain.text import YEARS, is_storable

MAX_NUMBER = 2**53 - 1  # the largest number that every program reads exactly


def must(holds: Callable[[Any], bool], reason: str) -> AfterValidator:
    """Of a value: one for which this does not hold is refused with the reason."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(reason)
        return value

    return AfterValidator(check)


Text = Annotated[
    str, must(is_storable, "contains NUL or half a surrogate pair, which cannot be stored")
]
Title = Annotated[
    Text,
    StringConstraints(min_length=1, max_length=MAX_TITLE_CHARS),
    must(lambda text: bool(text.strip()), "must have at least one character"),
]
ShortText = Annotated[Text, StringConstraints(max_length=1000)]
LongText = Annotated[Text, StringConstraints(max_length=100_000)]
Moment = Annotated[
    AwareDatetime,
    must(
        lambda moment: moment.year in YEARS,
        f"must be of a year from {YEARS[0]} through {YEARS[-1]}",
    ),
]
# A session of a channel in which only members of the workspace read may quote all of it, and a
# program gives its answers to whom it likes.
Channel = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$"),
    must(
        lambda channel: channel not in MEMBER_CHANNELS,
        "is reserved for sessions that only members of the workspace read; choose another",
    ),
]
Metadata = dict[Text, Any]
FormatName = Literal["anthropic", "openai"]

KEY_HEADER = "Idempotency-Key"
KEY_PATTERN = r"^[!-~]{1,255}$"


def key_header(description: str) -> Any:
    """The header by which a request that is sent twice is carried out once."""
    return Header(None, alias=KEY_HEADER, pattern=KEY_PATTERN, description=description)


# Shapes that several operations share. Times are UTC in ISO 8601.


class Page[T](Schema):
    """A page of a list. ``next`` and ``previous`` are cursors for further pages, null at
    the end."""

    items: list[T]
    next: str | None = None
    previous: str | None = None


# Pages of lists, by keyset: a cursor names a row, and which way to go from it.


class Paging(Schema):
    """What every list takes."""

    limit: int = Field(50, ge=1, le=MAX_PAGE_ROWS, description="Maximum number of items per page.")
    cursor: str = Field(
        "", max_length=400, description="`next` or `previous` from another page of this list."
    )


@dataclass(frozen=True, slots=True)
class PageRequest:
    """From which row to go (empty: from the end of the list) and which way."""

    limit: int
    place: str = ""
    is_back: bool = False

    @property
    def number(self) -> int | None:
        """The row of a list that is in the order of numbers. Raises Rejected."""
        return parse_optional_number(self.place)


def page_request_of(paging: Paging) -> PageRequest:
    """Raises Rejected for what is no cursor."""
    if not paging.cursor:
        return PageRequest(paging.limit)
    cursor = parse_page_cursor(paging.cursor)
    return PageRequest(paging.limit, cursor.place, cursor.is_back)


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
        "next": str(PageCursor(place_of(shown[-1]))) if shown and after else None,
        "previous": str(PageCursor(place_of(shown[0]), True)) if shown and before else None,
    }
