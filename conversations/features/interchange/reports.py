"""The stored form of an import's report.

The sentences are stored in English. For each sentence with values, ``said`` holds its template and
values, so that a page can translate it:
``{"notes": [{"place": …, "text": …, "said": {"text": …}}], "error": …}``. ``error`` holds the
template and values of the sentence in the column ``Import.error``. A report that is not an object
has no notes.
"""

import json
from collections.abc import Sequence
from typing import Any

from conversations.domain.messages import Message, as_message, message_data, restore_message
from conversations.domain.text import an_object, dump_json

MAX_TEXT_CHARS = 500  # Longer texts are cut, and stored without ``said``.


def as_note(place: str, text: str) -> dict[str, Any]:
    texts = {"place": place, "text": text}
    templates = {name: data for name, value in texts.items() if (data := _template_of(value))}
    cut_texts = {name: value[:MAX_TEXT_CHARS] for name, value in texts.items()}
    return cut_texts | ({"said": templates} if templates else {})


def write_report(notes: Sequence[dict[str, Any]], error: str = "") -> str:
    template = _template_of(error)
    return dump_json({"notes": notes} | ({"error": template} if template else {}))


def read_notes(report: str) -> list[tuple[str, str]]:
    """Return the place and the text of each note, as messages that can be translated."""
    value = json.loads(report)
    return [_read_note(note) for note in an_object(value).get("notes", ())]


def read_error(report: str, error: str) -> str:
    """Return the text of the column ``error`` as a message that can be translated."""
    value = json.loads(report)
    return as_message(restore_message(error, an_object(value).get("error")))


def _read_note(note: dict[str, Any]) -> tuple[str, str]:
    place, text, templates = note["place"], note["text"], note.get("said", {})
    # A place stays plain text unless ``said`` has its template: it may be any file name.
    return restore_message(place, templates.get("place")), as_message(
        restore_message(text, templates.get("text"))
    )


def _template_of(text: str) -> dict[str, Any]:
    """Return the template and values of a message, or {} if it has no values or is too long."""
    if not isinstance(text, Message) or not text.values or len(text) > MAX_TEXT_CHARS:
        return {}
    return message_data(text)
