"""Text of which nothing stays unseen: characters that a browser would not show, or
that turn the order of others around, are written out.

Names of files, commands and what programs print come from outside, and a person decides
by what is shown. ``rm\\u202e`` must not look like another word.
"""

import re

from .source_text import escape_text

_HIDDEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u115f\\u1160\\u180e\\u200b\\u200e\\u200f"
    "\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb\\U000e0000-\\U000e007f]"
)
_PICTURES = {code: chr(0x2400 + code) for code in range(32)} | {127: "\u2421"}
_LEFT_OUT = "\ufffd"

MOST_WRITTEN_OUT = 200
"""Characters of one text that are written out; the rest become U+FFFD, so that a text of
nothing else stays small."""


def show_hidden(text: str, *, most: int = MOST_WRITTEN_OUT) -> str:
    """The text as HTML, for use between tags; line ends and tabs stay as they are."""
    if text.isascii() and text.isprintable():
        return escape_text(text)
    left = most

    def show(found: re.Match[str]) -> str:
        nonlocal left
        code = ord(found[0])
        if code in _PICTURES:
            return _PICTURES[code]
        left -= 1
        return f'<span class="ctl">U+{code:04X}</span>' if left >= 0 else _LEFT_OUT

    return _HIDDEN.sub(show, escape_text(text))
