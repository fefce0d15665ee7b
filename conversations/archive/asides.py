"""Turns that stand aside: the provider refused a request with them, and later ones do without.

A marker is a system turn after them. So it is in the digest chain, is exported and imported with
the turns, and leaves the active path with them: who retries or edits a message gives it again.
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

# At the end of a refused request, which are looked through for what is new; a marker names no more.
MAX_REFUSED_TURNS = 400
REFUSAL = "refusal"

# What a marker is known by; its metadata is JSON of ours or of an import.
MARKER_SQL = f"t.role = '{SYSTEM}' AND t.metadata LIKE '%%\"{ASIDE}\"%%'"


def read_aside(session_pk: int, *, gone: Ranges | None = None) -> Ranges:
    """What stands aside on the active path, or on the one without the turns that are ``gone``, as
    ranges of turns in order."""
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
            # An import may name any turns: later ones are not marked, and no more than ours names.
            low, high = max(low, 1), min(high, low + MAX_REFUSED_TURNS, turn.number - 1)
            return is_aside, set(range(low, high + 1))
    return None


def require_aside(session_pk: int, turn: int) -> tuple[int, int]:
    """The turns that stand aside together with this one. Raises Rejected for one that does not."""
    for low, high in read_aside(session_pk):
        if low <= turn <= high:
            return low, high
    raise Rejected("This message is not left out.", code="not_aside")


def find_refused(session_pk: int) -> tuple[int, int] | None:
    """What a request that was refused just now had, and no request that was answered: the active
    turns after the last answer. None when there are none: it is not they that are refused."""
    last = Turn.objects.filter(session=session_pk).order_by("-number")[:1]
    end = last.values_list("number", flat=True).first() or 0
    new: list[int] = []
    walk = walk_active_turns_back(
        session_pk, down_to=max(1, end - MAX_REFUSED_TURNS), page=20, aside=read_aside(session_pk)
    )
    for turn in walk:
        if turn.role == ASSISTANT and turn.stop_reason != REFUSAL:
            break
        if turn.role != SYSTEM:
            new.append(turn.number)
    return (new[-1], new[0]) if new else None


def make_marker(low: int, high: int, *, is_aside: bool) -> tuple[NewTurn, NewEvent]:
    """The marker that these turns stand aside, or do no more, and the row that says so."""
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
