"""What the readers of JSON exports have in common: a list of conversations in a file."""

from collections.abc import Callable, Iterator
from typing import Any

from .json_items import DamagedJson, read_items
from .lines import Item, Object, Skipped
from .opening import DAMAGE, SourceFile
from .trees import TooBranched


def read_conversations(
    file: SourceFile, read: Callable[[Object, str], Iterator[Item]]
) -> Iterator[Item]:
    """Each conversation's lines. One that is not what it should be is skipped, with what
    went wrong; damage of the file ends it."""
    number = 0
    try:
        with file.open() as stream:
            for number, item in enumerate(read_items(stream), 1):
                yield from _read(item, f"{file.name}: conversation {number}", read)
    except (DamagedJson, *DAMAGE) as error:
        yield Skipped(f"{file.name}: after conversation {number}", str(error))


def _read(item: Any, place: str, read: Callable[[Object, str], Iterator[Item]]) -> Iterator[Item]:
    if not isinstance(item, dict):
        yield Skipped(place, "it is no object")
        return
    try:
        yield from read(item, place)
    except TooBranched as error:
        yield Skipped(place, str(error))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        yield Skipped(place, f"it is not built as expected ({type(error).__name__}: {error})")


def objects(value: Any) -> list[Object]:
    """The objects of a list, whatever else may be in it or in its place."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def an_object(value: Any) -> Object:
    return value if isinstance(value, dict) else {}


def a_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def an_id(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def ids(value: Any) -> list[str]:
    """The ids of a list, whatever else may be in it or in its place."""
    return [item for item in value if an_id(item)] if isinstance(value, list) else []
