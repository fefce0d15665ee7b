"""Characters that do not show, or that turn the order of others around.

Names of files, commands and what programs print come from outside, and a person decides
by what is shown: ``rm\\u202e`` must not look like another word, and nothing in a text may
move a terminal's cursor.
"""

import re
from collections.abc import Callable

_UNSEEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u115f\\u1160\\u180e\\u200b\\u200e\\u200f"
    "\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb\\U000e0000-\\U000e007f]"
)
_PICTURES = {code: chr(0x2400 + code) for code in range(32)} | {127: "\u2421"}
_LEFT_OUT = "\ufffd"

# Characters of one text that are written out; the rest become U+FFFD, so that a text of
# nothing else stays small.
MAX_WRITTEN_OUT_CHARS = 200


_SPACES = dict.fromkeys((*range(32), *range(127, 160), 8232, 8233), " ")


def without_unseen(text: str) -> str:
    """The text without characters that do not show, line ends and tabs included: for a
    title, which is one line and never a place for them."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub("", text.translate(_SPACES))


def write_out(text: str, *, name: Callable[[str], str], most: int = MAX_WRITTEN_OUT_CHARS) -> str:
    """The text with pictures in the place of ASCII controls, and for other characters
    that do not show what ``name`` makes of ``U+202E``. Line ends and tabs stay."""
    left = most

    def show(found: re.Match[str]) -> str:
        nonlocal left
        code = ord(found[0])
        if code in _PICTURES:
            return _PICTURES[code]
        left -= 1
        return name(f"U+{code:04X}") if left >= 0 else _LEFT_OUT

    return _UNSEEN.sub(show, text)
