"""The three ways in which text becomes HTML.

What the model writes is Markdown, what a person writes is verbatim with code and
links, what a program prints is plain. Each takes any string, never raises, takes
time in proportion to the length, and returns HTML that can be encoded as UTF-8
and is safe to put on a page. Whoever changes the HTML raises ``RENDER_VERSION``.
"""

import logging
import re
from collections.abc import Callable
from html import escape

from markdown_it.common.utils import mdTrim

from .markdown_parser import TooMuchWork, Work, parse, render_tokens
from .person_text import render_verbatim
from .source_text import escape_text, normalise_source

logger = logging.getLogger(__name__)

_PLAIN_LINE = r"(?![ \d#>+\-=|:])[^\x00-\x1f\x7f-\xa0\\`*_\[<&~]++(?<! )"
_PLAIN_PARAGRAPH = re.compile(rf"{_PLAIN_LINE}(?:\n{_PLAIN_LINE})*+\n?")

_ANSI_CODE = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, links
    r"|[ -/]*[0-~]"  # the short ones
    r")"
)
"""Escape sequences as in ECMA-48, 5.4 and 5.6."""


TOO_MUCH_WORK = (
    '<p class="unformatted">This text is shown as it was written: it has too many marks to be'
    " laid out.</p>\n"
)


def render_markdown(text: str, *, highlight: bool = True, work: Work | None = None) -> str:
    """Render Markdown as the model writes it; without ``highlight`` code has no colours.

    What is more than ``work`` is shown as it was written, and says so.
    """
    work = work or Work()
    return _render_safely(
        lambda source: render_source(source, highlight=highlight, work=work), text
    )


def render_person_text(text: str) -> str:
    """Render a person's message: verbatim but for code and web addresses.

    Its paragraphs (``p.verbatim``) need ``white-space: pre-wrap``.
    """
    return _render_safely(render_verbatim, text)


def render_plain(text: str) -> str:
    """Escape the output of a program for use in ``<pre>``, without terminal codes.

    HTML drops a line break right after ``<pre>``: put one there, or ``<code>``.
    """
    return escape(normalise_source(_ANSI_CODE.sub("", text)))


def render_source(source: str, *, highlight: bool, work: Work) -> str:
    """Render normalised Markdown. Unlike ``render_markdown`` it may raise."""
    if is_plain_paragraph(source):
        return f"<p>{escape_text(mdTrim(source))}</p>\n"
    return render_tokens(parse(source, work=work), highlight=highlight, work=work)


def is_plain_paragraph(source: str) -> bool:
    """True only if Markdown would make one paragraph of ``source`` and see no mark in it.

    A shortcut for most of what is rendered while an answer streams.
    """
    return _PLAIN_PARAGRAPH.fullmatch(source) is not None and "://" not in source


def _render_safely(render: Callable[[str], str], text: str) -> str:
    """Render, and should the renderer fail, show the text as it is."""
    source = normalise_source(text)
    try:
        return render(source)
    except TooMuchWork:
        return TOO_MUCH_WORK + show_as_written(source)
    except Exception:
        logger.exception("text_not_rendered", extra={"fields": {"chars": len(source)}})
        return show_as_written(source)


def show_as_written(source: str) -> str:
    """Normalised text without any layout."""
    return f'<p class="verbatim">{escape_text(source)}</p>\n'
