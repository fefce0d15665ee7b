"""The state as JSON text. The same state always gives the same text."""

from collections.abc import Iterable
from functools import lru_cache
from json import JSONEncoder
from threading import Lock
from typing import Any

from conversations.domain.jsontext import load_json

from .values import (
    RULES_VERSION,
    Call,
    Failure,
    File,
    Focus,
    ItemMark,
    Resolved,
    SessionState,
    StateDecision,
)

PREFIX = f'{{"v":{RULES_VERSION},'
"""What the text of every state begins with that these rules made."""

EMPTY = "{}"

_ENCODER = JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""Every text in a state is storable already."""


def dump_state(state: SessionState) -> str:
    parts = (f'"{name}":{_dump(getattr(state, name))}' for name in SessionState._fields)
    text = f"{PREFIX}{','.join(parts)}}}"
    _RECENT.add(text, state)
    return text


@lru_cache(maxsize=1_000)
def _dump(part: Any) -> str:
    """One field. Most are what they were in the state before."""
    return _ENCODER.encode(part)


def load_state(text: str) -> SessionState | None:
    """Read what :func:`dump_state` wrote, None for what these rules did not write or
    what was damaged: the archive gives it again."""
    if text == EMPTY:
        return SessionState()
    state = _RECENT.find(text)
    if state is None and text.startswith(PREFIX):
        try:
            state = parse_state(text)
        except (ValueError, KeyError, TypeError):
            return None
        _RECENT.add(text, state)
    return state


class _Recent:
    """The newest states by their text: what one append writes the next one starts
    from, and the window reads in between."""

    MOST = 200

    def __init__(self) -> None:
        self._states: dict[str, SessionState] = {}
        self._lock = Lock()

    def add(self, text: str, state: SessionState) -> None:
        with self._lock:
            self._states[text] = state
            if len(self._states) > self.MOST:
                del self._states[next(iter(self._states))]

    def find(self, text: str) -> SessionState | None:
        return self._states.get(text)


_RECENT = _Recent()


def parse_state(text: str) -> SessionState:
    """Raises ValueError, KeyError or TypeError for anything else."""
    value = load_json(text)
    return SessionState(
        tokens=value["tokens"],
        model=value["model"],
        focus=Focus(*value["focus"]) if value["focus"] else None,
        files=_tuples(File, value["files"]),
        decisions=_tuples(StateDecision, value["decisions"]),
        errors=_tuples(Resolved, value["errors"]),
        struck=_tuples(StateDecision, value["struck"]),
        calls=tuple(_call(row) for row in value["calls"]),
        failures=tuple(_failure(row) for row in value["failures"]),
        marks=_tuples(ItemMark, value["marks"]),
        edit_seq=value["edit_seq"],
    )


def _tuples[T](kind: type[T], rows: Iterable[list[Any]]) -> tuple[T, ...]:
    return tuple(kind(*row) for row in rows)


def _call(row: list[Any]) -> Call:
    call = Call(*row)
    return call._replace(paths=tuple(call.paths))


def _failure(row: list[Any]) -> Failure:
    failure = Failure(*row)
    return failure._replace(fixes=tuple(failure.fixes))
