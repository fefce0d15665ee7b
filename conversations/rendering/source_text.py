"""What every renderer does to text first and last: make it storable, make it safe.

Text arrives from models, people and programs, cut at arbitrary places, so it may
hold anything that a Python string can hold. After ``normalise_source`` a line
ends with ``\\n`` and nothing else, and the text can be encoded as UTF-8.
"""

import re

from conversations.domain.text import REPLACEMENT, storable

STAND_INS = ("\ufdd0", "\ufdd1")
"""Characters that Unicode keeps free for internal use; no normalised text has them."""

_LINE_END = re.compile(r"\r\n?")
_STAND_IN = re.compile(f"[{''.join(STAND_INS)}]")


def normalise_source(text: str) -> str:
    """Return ``text`` with line ends as ``\\n`` and NUL, surrogates and stand-ins as U+FFFD.

    Works character by character but for ``\\r\\n``, so pieces of a stream may be
    normalised one by one as long as none is cut behind a ``\\r``.
    """
    lines = _LINE_END.sub("\n", text) if "\r" in text else text
    return _STAND_IN.sub(REPLACEMENT, storable(lines))


def escape_text(text: str) -> str:
    """Escape ``text`` for use between tags, spelled as the sanitiser spells it.

    Not for attribute values: quotes stay as they are.
    """
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("\xa0", "&nbsp;")
