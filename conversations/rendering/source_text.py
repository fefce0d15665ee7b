"""What every renderer does to text first and last: make it storable, make it safe.

Text arrives from models, people and programs, cut at arbitrary places, so it may
hold anything that a Python string can hold. After ``normalise_source`` a line
ends with ``\\n`` and nothing else, and the text can be encoded as UTF-8.
"""

import re

from conversations.domain.text import storable

_LINE_END = re.compile(r"\r\n?")


def normalise_source(text: str) -> str:
    """Return ``text`` with line ends as ``\\n`` and NUL and surrogates as U+FFFD.

    Works character by character but for ``\\r\\n``, so pieces of a stream may be
    normalised one by one as long as none is cut behind a ``\\r``.
    """
    return storable(_LINE_END.sub("\n", text) if "\r" in text else text)


def escape_text(text: str) -> str:
    """Escape ``text`` for use between tags, spelled as the sanitiser spells it.

    Not for attribute values: quotes stay as they are.
    """
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("\xa0", "&nbsp;")
