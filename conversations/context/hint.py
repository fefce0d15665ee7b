"""The recall hint: one line for the model that names turns outside the window.

Seed 000 looks for phrases such as "as before". They hardly ever stand in a message that
needs older turns, so the archive is asked too: which turns is the message about?
"""

import re

from conversations.archive.rewinds import is_rewound
from conversations.archive.search import read_occurrences
from conversations.domain.words import tokens_of_word

from .related_turns import find_related_turns

PHRASES = (
    "like we discussed",
    "as before",
    "remember when",
    "go back to",
    "that file",
    "that error",
    "that function",
    "what we did",
    "earlier",
    "the previous",
    "as I said",
    "like I mentioned",
    "that thing",
    "we already",
)
"""Seed 000's list."""

POINTING = {"that file": "file", "that error": "error", "that function": "function"}
"""Phrases that may as well mean something in the window, and what they point at."""

PHRASE_HINT = (
    "[System: The user may be referencing earlier conversation that is no longer in your"
    " context window. Use the conversation_recall tool to search for relevant context before"
    " proceeding.]"
)
"""Seed 000's sentence."""

_PHRASE = re.compile(
    rf"\b(?:{'|'.join(re.escape(phrase.lower()) for phrase in PHRASES)})\b", re.IGNORECASE
)


def find_hint(session_pk: int, text: str, *, floor: int, turn: int) -> str:
    """A line about turns below ``floor`` that the person's message ``text`` in ``turn``
    seems to be about; empty when there is none. Reads a bounded number of rows."""
    if floor <= 1:
        return ""
    related = find_related_turns(session_pk, text, floor=floor, turn=turn)
    turns = [number for number in related if not is_rewound(session_pk, number)]
    if turns:
        return name_turns(turns)
    phrase = find_phrase(text)
    if not phrase or _is_in_window(session_pk, phrase, floor=floor, turn=turn):
        return ""
    return PHRASE_HINT


def name_turns(turns: list[int]) -> str:
    named = ", ".join(map(str, turns))
    if len(turns) == 1:
        return (
            f"[Archive: turn {named} (outside this window) seems related;"
            " conversation_recall range shows it.]"
        )
    return (
        f"[Archive: turns {named} (outside this window) seem related;"
        " conversation_recall range shows them.]"
    )


def find_phrase(text: str) -> str:
    """The first of the seed's phrases in the message, in lower case."""
    match = _PHRASE.search(text)
    return match[0].lower() if match else ""


def _is_in_window(session_pk: int, phrase: str, *, floor: int, turn: int) -> bool:
    """Whether the window speaks of the thing that the phrase points at."""
    thing = POINTING.get(phrase)
    if thing is None:
        return False
    [token] = tokens_of_word(thing)
    found = read_occurrences(session_pk, [token], before_turn=turn, limit=1)
    return any(number >= floor for number in found.get(token, ()))
