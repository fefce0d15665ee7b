"""What readers yield."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

type Object = dict[str, Any]

NAMESPACE = UUID("0f7f3a52-8a0c-5b0e-9f0a-5f6f0a1d2c3b")
"""From which uuids are made for what has none of its own."""


@dataclass(frozen=True, slots=True)
class ImportLine:
    """A line of the interchange file. ``place``: where a person finds it in the source."""

    place: str
    value: Object


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that could not be read, with the reason."""

    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the person should know, though nothing is lost."""

    place: str
    text: str


type Item = ImportLine | Skipped | Note


@dataclass(frozen=True, slots=True)
class Reached:
    """How far an earlier import of a tree got in a session: the last node, and whether the
    session went on in the archive, so that nothing can follow it."""

    node: str
    is_continued: bool


type Words = tuple[str | None, ...]
"""What a turn says, to compare it with another."""


@dataclass(frozen=True, slots=True)
class Archive:
    """What a reader may ask of the archive: how far it got in a session, what the
    session's uuid is there, what its turns say, and what the turn of a line would say
    (None: it cannot be one)."""

    reached: Callable[[UUID], Reached | None] = lambda _: None
    resolve: Callable[[UUID], UUID] = lambda uuid: uuid
    told: Callable[[UUID], Iterator[Words]] = lambda _: iter(())
    words: Callable[[Object], Words | None] = lambda _: None


def stable_uuid(*parts: str) -> UUID:
    """The same parts always give the same uuid."""
    return uuid5(NAMESPACE, "\x1f".join(parts).encode("utf-8", "surrogatepass"))


def own_uuid(source: str, value: Any) -> UUID:
    """The id that a source gives its conversation, where that is a uuid; else one made
    of it."""
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        return stable_uuid(source, str(value))


def without(value: Object, *names: str) -> Object:
    """What is left of an object, and is not empty: for the metadata."""
    return {name: item for name, item in value.items() if name not in names and item not in _EMPTY}


_EMPTY: tuple[Any, ...] = (None, "", [], {})
