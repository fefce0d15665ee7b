"""What an import has noted, as it is kept: in English, and beside each sentence that has values
what it is made of (``said``), so that a page can say it in another language.

``{"notes": [{"place": …, "text": …, "said": {"text": …}}], "error": …}``, where ``error`` is what
the sentence is made of that stands in a column of its own. What is no object notes nothing.
"""

import json
from collections.abc import Sequence
from typing import Any

from conversations.domain.messages import Message, as_message, message_data, restore_message
from conversations.domain.text import an_object, dump_json

MAX_TEXT_CHARS = 500  # Of a longer one nothing else is kept than its beginning.


def as_note(place: str, text: str) -> dict[str, Any]:
    told = {"place": place, "text": text}
    said = {name: data for name, one in told.items() if (data := _said(one))}
    kept = {name: one[:MAX_TEXT_CHARS] for name, one in told.items()}
    return kept | ({"said": said} if said else {})


def write_report(notes: Sequence[dict[str, Any]], error: str = "") -> str:
    said = _said(error)
    return dump_json({"notes": notes} | ({"error": said} if said else {}))


def read_notes(report: str) -> list[tuple[str, str]]:
    """The place and the text of each note, as messages where they are known to be some."""
    found = json.loads(report)
    return [_read_note(note) for note in an_object(found).get("notes", ())]


def read_error(report: str, error: str) -> str:
    """The column ``error`` as a message."""
    found = json.loads(report)
    return as_message(restore_message(error, an_object(found).get("error")))


def _read_note(note: dict[str, Any]) -> tuple[str, str]:
    place, text, said = note["place"], note["text"], note.get("said", {})
    # A place may be any file's name.
    return restore_message(place, said.get("place")), as_message(
        restore_message(text, said.get("text"))
    )


def _said(text: str) -> dict[str, Any]:
    """Nothing for what is its own template."""
    if not isinstance(text, Message) or not text.values or len(text) > MAX_TEXT_CHARS:
        return {}
    return message_data(text)
