"""Asides: turns that later requests omit because the provider refused a request with them.

A marker is a system turn that follows the turns. It is therefore part of the digest chain, is
exported and imported with the turns, and leaves the active path with them. If a person retries or
edits a message, the message is sent to the model again.
"""

from typing import Any

from conversations.domain.active_path import Ranges, are_within, merge_ranges
from conversations.domain.errors import Rejected
from conversations.domain.events import INCLUDED, SET_ASIDE, Info
from conversations.domain.messages import say
from conversations.domain.text import dump_json, estimate_tokens
from conversations.domain.turns import ASIDE, ASSISTANT, SYSTEM, NewTurn, StoredTurn, read_metadata
from conversations.models import Turn

from .append import NewEvent
from .turns import read_rewound, stored_turns, walk_active_turns_back

# The number of turns at the end of a refused request that are searched for new turns. A marker
# covers no more turns than this.
MAX_REFUSED_TURNS = 400
REFUSAL = "refusal"

# Finds markers by their metadata, which is JSON written by this module or by an import.
MARKER_SQL = f"t.role = '{SYSTEM}' AND t.metadata LIKE '%%\"{ASIDE}\"%%'"


def read_aside(session_pk: int, *, gone: Ranges | None = None) -> Ranges:
    """Return the asides on the active path as ordered ranges of turns.

    If ``gone`` is given, use the path without those turns instead of the active path.
    """
    markers = Turn.objects.filter(
        session=session_pk, role=SYSTEM, metadata__contains=f'"{ASIDE}"'
    ).order_by("number")
    if gone is None:
        gone = read_rewound(session_pk, "turn")
    aside: set[int] = set()
    for marker in stored_turns(markers):
        marked = _read_marker(marker)
        if marked is None or are_within(marker.number, gone):
            continue
        is_aside, turns = marked
        aside = aside | turns if is_aside else aside - turns
    return merge_ranges((number, number) for number in aside)


def _read_marker(turn: StoredTurn) -> tuple[bool, set[int]] | None:
    value = read_metadata(turn).get(ASIDE)
    match value:
        case {"from": int(low), "to": int(high), "is_aside": bool(is_aside)}:
            # An import can contain any numbers. Limit the range to turns before the marker, and to
            # the length that this module uses.
            low, high = max(low, 1), min(high, low + MAX_REFUSED_TURNS, turn.number - 1)
            return is_aside, set(range(low, high + 1))
    return None


def require_aside(session_pk: int, turn: int) -> tuple[int, int]:
    """Return the range of turns of the aside that contains this turn.

    Raise Rejected if the turn is not in an aside.
    """
    for low, high in read_aside(session_pk):
        if low <= turn <= high:
            return low, high
    raise Rejected("This message is already included.", code="not_aside")


def find_refused(session_pk: int) -> tuple[int, int] | None:
    """Return the range of turns that only the refused request contained, or None.

    These are the active turns after the last answer. None means that there are no such turns, so
    the refusal was not caused by them.
    """
    last = Turn.objects.filter(session=session_pk).order_by("-number")[:1]
    end = last.values_list("number", flat=True).first() or 0
    numbers: list[int] = []
    walk = walk_active_turns_back(
        session_pk, down_to=max(1, end - MAX_REFUSED_TURNS), page=20, aside=read_aside(session_pk)
    )
    for turn in walk:
        if turn.role == ASSISTANT and turn.stop_reason != REFUSAL:
            break
        if turn.role != SYSTEM:
            numbers.append(turn.number)
    return (numbers[-1], numbers[0]) if numbers else None


def make_marker(low: int, high: int, *, is_aside: bool) -> tuple[NewTurn, NewEvent]:
    """Return the marker that sets these turns aside or includes them again, and its row."""
    if is_aside and low == high:
        text = say(
            "Turn %(number)s is not sent to the model with later messages, since the request was "
            "refused.",
            number=low,
        )
    elif is_aside:
        text = say(
            "Turns %(first)s–%(last)s are not sent to the model with later messages, since the "
            "request was refused.",
            first=low,
            last=high,
        )
    elif low == high:
        text = say(
            "Turn %(number)s is sent to the model again, as far as there is room.", number=low
        )
    else:
        text = say(
            "Turns %(first)s–%(last)s are sent to the model again, as far as there is room.",
            first=low,
            last=high,
        )
    data: dict[str, Any] = {"from": low, "to": high}
    turn = NewTurn(
        role=SYSTEM,
        content=text,
        token_count=estimate_tokens(text),
        metadata=dump_json({ASIDE: data | {"is_aside": is_aside}, "user_facing": True}),
    )
    code = SET_ASIDE if is_aside else INCLUDED
    return turn, NewEvent(payload=Info(text=text, code=code, data=data), new=0)
