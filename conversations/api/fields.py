"""Values that requests give: what each may be, as the description says it."""

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja.params.functions import Header
from pydantic import AfterValidator, AwareDatetime, StringConstraints

from conversations.domain.text import is_storable

MAX_NUMBER = 2**53 - 1
"""The largest number that every program reads exactly."""

LAST_YEAR = 9000


def _storable(text: str) -> str:
    if not is_storable(text):
        raise ValueError("a NUL or half a surrogate pair cannot be kept")
    return text


def _in_time(moment: datetime) -> datetime:
    if moment.year >= LAST_YEAR:
        raise ValueError(f"lies before the year {LAST_YEAR}")
    return moment


def _with_words(text: str) -> str:
    if not text.strip():
        raise ValueError("needs at least one character")
    return text


Text = Annotated[str, AfterValidator(_storable)]
Title = Annotated[
    Text, StringConstraints(min_length=1, max_length=120), AfterValidator(_with_words)
]
ShortText = Annotated[Text, StringConstraints(max_length=1000)]
LongText = Annotated[Text, StringConstraints(max_length=100_000)]
Moment = Annotated[AwareDatetime, AfterValidator(_in_time)]
Channel = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
Metadata = dict[Text, Any]
FormatName = Literal["anthropic", "openai"]

KEY_HEADER = "Idempotency-Key"


def key_header(description: str) -> Any:
    """The header by which a request that is sent twice is carried out once."""
    return Header(None, alias=KEY_HEADER, pattern=r"^[!-~]{1,255}$", description=description)
