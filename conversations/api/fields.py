"""Types of values in requests, shared schemas, and the pages of lists."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ninja import Field, Schema
from ninja.params.functions import Header
from pydantic import AfterValidator, AwareDatetime, ConfigDict, StringConstraints

from conversations.archive.sessions import MAX_TITLE_CHARS
from conversations.archive.turns import MAX_PAGE_ROWS
from conversations.domain.keyset import PageCursor, parse_optional_number, parse_page_cursor
from conversations.domain.session_keys import MEMBER_CHANNELS
from conversations.domain.text import YEARS, is_storable

MAX_NUMBER = 2**53 - 1  # the largest number that every program reads exactly


def must(holds: Callable[[Any], bool], reason: str) -> AfterValidator:
    """Return a validator that refuses values for which ``holds`` is false, with the reason."""

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
# Sessions of member channels may recall the whole workspace, because only its members read them. A
# program may pass on answers to anybody, so it cannot use these channels.
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
    """Return the header with which a repeated request is executed only once."""
    return Header(None, alias=KEY_HEADER, pattern=KEY_PATTERN, description=description)


# Schemas that several operations share. Times are UTC in ISO 8601.


class Wrong(Schema):
    """A value of the request that is invalid: its location, and the reason."""

    location: list[str | int]
    reason: str


class Problem(Schema):
    """The reason why a request was refused (RFC 9457).

    Programs should check ``code``. ``detail`` is for people, and never contains a secret.
    """

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[Wrong] | None = None


class Page[T](Schema):
    """A page of a list. ``next`` and ``previous`` are cursors, null if there is no such page."""

    items: list[T]
    next: str | None = None
    previous: str | None = None


# Keyset pagination: a cursor names a row and the direction in which to continue from it.


class Paging(Schema):
    """The parameters of every list."""

    limit: int = Field(50, ge=1, le=MAX_PAGE_ROWS, description="Maximum number of items per page.")
    cursor: str = Field(
        "", max_length=400, description="`next` or `previous` from another page of this list."
    )


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page: the limit, the row to continue from, and the direction.

    An empty ``place`` stands for the first page.
    """

    limit: int
    place: str = ""
    is_back: bool = False

    @property
    def number(self) -> int | None:
        """``place`` as a number, or None if it is empty. Raise Rejected if it is not a number."""
        return parse_optional_number(self.place)


def page_request_of(paging: Paging) -> PageRequest:
    """Return the page that the parameters ask for. Raise Rejected if the cursor is invalid."""
    if not paging.cursor:
        return PageRequest(paging.limit)
    cursor = parse_page_cursor(paging.cursor)
    return PageRequest(paging.limit, cursor.place, cursor.is_back)


def make_page[T](
    walk: PageRequest, rows: list[T], *, as_item: Callable[[T], Any], place_of: Callable[[T], str]
) -> dict[str, Any]:
    """Return a page of a list.

    ``rows`` has the rows in the requested direction, one more than the limit if more rows follow.
    """
    items = rows[: walk.limit]
    has_more = len(rows) > walk.limit
    has_next, has_previous = has_more, bool(walk.place)
    if walk.is_back:
        items.reverse()
        has_next, has_previous = bool(walk.place), has_more
    return {
        "items": [as_item(item) for item in items],
        "next": str(PageCursor(place_of(items[-1]))) if items and has_next else None,
        "previous": str(PageCursor(place_of(items[0]), True)) if items and has_previous else None,
    }
