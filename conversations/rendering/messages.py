"""Translation of sentences on pages and in stored rows.

A page is made for one person, so its sentences are translated at once. A row is made once for
everybody and stored. Its HTML has a mark in the place of each sentence, with the sentence's
template and values, and ``fill_marks`` replaces the marks when the row is read. A mark is enclosed
in characters that Unicode reserves for internal use and that are removed from the content of a row
(``rows.without_marks_in``). A mark contains no tag and no quotation mark.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache, partial
from html import escape, unescape
from typing import Any

from django.utils.html import conditional_escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language, gettext, ngettext

from conversations.domain.messages import MAX_LEVELS, Message, as_message, put_values
from conversations.domain.text import escape_invisible

from .source_text import MARK_END, MARK_PART, MARK_START, show_hidden, without_marks

_MARK = re.compile(f'{MARK_START}([^{MARK_START}{MARK_END}<>"]*){MARK_END}')
MAX_DIGITS = 18  # Digits of the number in a mark, more than any count has.


def translate(text: str) -> str:
    """Translate a message into the active language; return any other text unchanged."""
    if not isinstance(text, Message):
        return text
    sentence = _look_up(text.template, text.plural, text.number)
    if not text.values:
        return sentence
    values = {
        name: translate(value) if isinstance(value, str) else value
        for name, value in text.values.items()
    }
    return put_values(sentence, values)


def mark(text: str, *, change: Callable[[str], str] = str) -> SafeString:
    """Return a message as a mark for :func:`fill_marks`; escape any other text.

    ``change`` is applied to each text of a message."""
    if not isinstance(text, Message):
        return conditional_escape(text)
    values = {}
    for name, value in text.values.items():
        if isinstance(value, Message):
            values[name] = mark(value, change=change)
        elif isinstance(value, SafeString):
            values[name] = value
        else:
            values[name] = conditional_escape(change(str(value)))
    template, plural = change(text.template), change(text.plural)
    return make_mark(template, values, plural=plural, number=text.number)


def mark_text(text: str) -> SafeString:
    """Return the mark of a message or the escaped text, with invisible characters made visible.

    The result is for use between tags (see ``show_hidden``)."""
    if not isinstance(text, Message):
        return mark_safe(show_hidden(text))
    return mark(text, change=partial(escape_invisible, name=str))


def mark_notice(text: str) -> SafeString:
    """Return the mark of a notice, like ``mark_text``.

    A notice without values is stored as its own template."""
    return mark_text(as_message(text))


def make_mark(
    template: str, values: dict[str, Any], *, plural: str = "", number: int = 0
) -> SafeString:
    """Return the mark of a sentence; its ``values`` are escaped texts."""
    parts = [escape(template)]
    if plural or values:
        parts += [escape(plural), str(number)]
        parts += [f"{name}={value}" for name, value in values.items()]
    return mark_safe(f"{MARK_START}{MARK_PART.join(parts)}{MARK_END}")


def fill_marks(html: str) -> SafeString:
    """Replace the marks in HTML by sentences in the active language."""
    language = get_language() or ""

    def fill(match: re.Match[str]) -> str:
        template, *parts = match[1].split(MARK_PART)
        if len(parts) < 2:
            return _say(template, "", 0, language)
        count = int(parts[1]) if parts[1].isdecimal() and len(parts[1]) <= MAX_DIGITS else 0
        sentence = _say(template, parts[0], count, language)
        values = dict(part.partition("=")[::2] for part in parts[2:])
        return put_values(sentence, defaultdict(str, values))

    # Values may be marks themselves.
    for _ in range(MAX_LEVELS):
        html, count = _MARK.subn(fill, html)
        if not count:
            break
    return mark_safe(without_marks(html))


@lru_cache(maxsize=2_000)  # A page of rows has hundreds of marks, nearly all of them the same.
def _say(template: str, plural: str, number: int, language: str) -> str:
    """Return the sentence as HTML; ``language``, the active one, is only part of the cache key."""
    return escape(_look_up(unescape(template), unescape(plural), number))


def _look_up(template: str, plural: str, number: int) -> str:
    if not template:  # The catalog has its header under the empty string.
        return ""
    return ngettext(template, plural, number) if plural else gettext(template)
