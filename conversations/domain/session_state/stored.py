"""The state as JSON text. The same state always gives the same text."""

from collections.abc import Iterable
from functools import lru_cache
from json import JSONEncoder
from typing import Any

from conversations.domain.jsontext import load_json

from .values import (
    RULES_VERSION,
    Call,
    Decision,
    Failure,
    File,
    Focus,
    Mark,
    Resolved,
    SessionState,
)

PREFIX = f'{{"v":{RULES_VERSION},'
"""What the text of every state begins with that these rules made."""

EMPTY = "{}"

_ENCODER = JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""Every text in a state is storable already."""


def is_current(text: str) -> bool:
    """Whether the text was written by the rules in force."""
    return text == EMPTY or text.startswith(PREFIX)


def dump_state(state: SessionState) -> str:
    return _ENCODER.encode(
        {
            "v": RULES_VERSION,
            "tokens": state.tokens,
            "model": state.model,
            "focus": state.focus,
            "files": state.files,
            "decisions": state.decisions,
            "errors": state.errors,
            "struck": state.struck,
            "calls": state.calls,
            "failures": state.failures,
            "marks": state.marks,
            "edit_seq": state.edit_seq,
        }
    )


@lru_cache(maxsize=128)
def load_state(text: str) -> SessionState:
    """Read what :func:`dump_state` wrote; the empty state for anything else. What the
    window has just read is what the next append starts from."""
    value = load_json(text) if text.startswith(PREFIX) else None
    if value is None:
        return SessionState()
    return SessionState(
        tokens=value["tokens"],
        model=value["model"],
        focus=Focus(*value["focus"]) if value["focus"] else None,
        files=_tuples(File, value["files"]),
        decisions=_tuples(Decision, value["decisions"]),
        errors=_tuples(Resolved, value["errors"]),
        struck=_tuples(Decision, value["struck"]),
        calls=tuple(_call(row) for row in value["calls"]),
        failures=tuple(_failure(row) for row in value["failures"]),
        marks=_tuples(Mark, value["marks"]),
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
