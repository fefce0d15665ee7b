"""What every renderer does to text first and last: make it storable, make it safe.

Text arrives from models, people and programs, cut at arbitrary places, so it may
hold anything that a Python string can hold. After ``normalise_source`` a line
ends with ``\n`` and nothing else, and the text can be encoded as UTF-8.
"""

import re

from conversations.domain.text import REPLACEMENT, escape_invisible, storable

# Characters that Unicode keeps free for internal use; no normalised text has them.
STAND_INS = ("\ufdd0", "\ufdd1")
MARK_START, MARK_END, MARK_PART = "\ufdd2", "\ufdd3", "\ufdd4"  # of a sentence (messages.py)
_LINE_END = re.compile(r"\r\n?")
_ALL_STAND_INS = (*STAND_INS, MARK_START, MARK_END, MARK_PART)
_STAND_IN = re.compile(f"[{''.join(_ALL_STAND_INS)}]")


def normalise_source(text: str) -> str:
    """Return ``text`` with line ends as ``\\n`` and NUL, surrogates and stand-ins as U+FFFD.
    Works character by character but for ``\\r\\n``, so pieces of a stream may be normalised
    one by one as long as none is cut behind a ``\\r``."""
    lines = _LINE_END.sub("\n", text) if "\r" in text else text
    return without_marks(storable(lines))


def without_marks(text: str) -> str:
    """The text with stand-ins as U+FFFD: a mark of a sentence in a row is ours."""
    # Hardly any text has one; to look for each is sixty times as fast as the expression.
    return _STAND_IN.sub(REPLACEMENT, text) if any(one in text for one in _ALL_STAND_INS) else text


def escape_text(text: str) -> str:
    """Escape ``text`` for use between tags, spelled as the sanitiser spells it. Not for
    attribute values: quotes stay as they are."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("\xa0", "&nbsp;")


def escape_attribute(text: str) -> str:
    """The same for use in an attribute's value, between double quotes."""
    return escape_text(text).replace('"', "&quot;")


# Times and sizes as a person reads them.
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
    """Bytes (or characters) in the unit that suits them."""
    if size < 1000:
        return f"{size} B"
    if size < 1_000_000:
        return f"{size / 1000:.0f} KB"
    return f"{size / 1_000_000:.1f} MB"


# Text as HTML of which nothing stays unseen (see ``domain.text``).
def show_hidden(text: str) -> str:
    """The text as HTML, for use between tags; line ends and tabs stay as they are."""
    if text.isascii() and text.isprintable():
        return escape_text(text)
    return escape_invisible(
        escape_text(text), name=lambda point: f'<span class="ctl">{point}</span>'
    )
