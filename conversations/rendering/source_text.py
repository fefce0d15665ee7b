"""Normalising and escaping of text, which every renderer needs.

Text arrives from models, people and programs, cut at arbitrary places, so it may hold anything that
a Python string can hold. After ``normalise_source``, each line ends with ``\n`` alone, and the text
can be encoded as UTF-8.
"""

import re

from conversations.domain.text import REPLACEMENT, escape_invisible, storable

# Characters that Unicode reserves for internal use. Normalised text has none of them.
STAND_INS = ("\ufdd0", "\ufdd1")
# The delimiters of a mark, which stands for a translated sentence (messages.py).
MARK_START, MARK_END, MARK_PART = "\ufdd2", "\ufdd3", "\ufdd4"
_LINE_END = re.compile(r"\r\n?")
_ALL_STAND_INS = (*STAND_INS, MARK_START, MARK_END, MARK_PART)
_STAND_IN = re.compile(f"[{''.join(_ALL_STAND_INS)}]")


def normalise_source(text: str) -> str:
    """Return ``text`` with line ends as ``\\n`` and NUL, surrogates and stand-ins as U+FFFD.

    Each character is handled by itself, except for ``\\r\\n``. Pieces of a stream may therefore be
    normalised one by one if none is cut after a ``\\r``."""
    lines = _LINE_END.sub("\n", text) if "\r" in text else text
    return without_marks(storable(lines))


def without_marks(text: str) -> str:
    """Replace stand-ins by U+FFFD, so that only the renderers can put marks into a row."""
    # Hardly any text has one. Searching for each is sixty times as fast as the expression.
    return _STAND_IN.sub(REPLACEMENT, text) if any(c in text for c in _ALL_STAND_INS) else text


def escape_text(text: str) -> str:
    """Escape ``text`` for use between tags, with the same spelling as the sanitiser.

    Do not use it for attribute values, because quotes stay as they are."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("\xa0", "&nbsp;")


def escape_attribute(text: str) -> str:
    """Escape ``text`` for an attribute's value between double quotes."""
    return escape_text(text).replace('"', "&quot;")


# Durations and sizes in a readable form.
def duration_text(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def size_text(size: int) -> str:
    """Format a number of bytes (or characters) in a suitable unit."""
    if size < 1000:
        return f"{size} B"
    if size < 1_000_000:
        return f"{size / 1000:.0f} KB"
    return f"{size / 1_000_000:.1f} MB"


# Text as HTML in which invisible characters are shown (see ``domain.text``).
def show_hidden(text: str) -> str:
    """Return the text as HTML for use between tags; line ends and tabs stay as they are."""
    if text.isascii() and text.isprintable():
        return escape_text(text)
    return escape_invisible(
        escape_text(text), name=lambda point: f'<span class="ctl">{point}</span>'
    )
