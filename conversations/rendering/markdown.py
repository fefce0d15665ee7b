"""Rendering of the three kinds of text: Markdown, verbatim and plain.

Text of the model is Markdown. Text of a person is verbatim, except for code and links. Output of a
program is plain. Each renderer accepts any string, never raises, takes time in proportion to the
length, and returns HTML that can be encoded as UTF-8 and is safe on a page. A change of the HTML
requires a new ``RENDER_VERSION``.
"""

import logging
import re
from collections.abc import Callable
from functools import partial
from html import escape

from markdown_it.common.utils import mdTrim

from conversations.domain.messages import say
from conversations.domain.text import strip_terminal_codes

from .code_blocks import render_code_block
from .markdown_parser import TooMuchWork, WorkBudget, parse, render_tokens
from .messages import mark
from .sanitiser import URL, normalise_url, sanitise, trim_url, web_host
from .source_text import escape_attribute, escape_text, normalise_source

logger = logging.getLogger(__name__)
_PLAIN_LINE = r"(?![ \d#>+\-=|:])[^\x00-\x1f\x7f-\xa0\\`*_\[<&~$]++(?<! )"
_PLAIN_PARAGRAPH = re.compile(rf"{_PLAIN_LINE}(?:\n{_PLAIN_LINE})*+\n?")


_TOO_MUCH_MARKUP = say("This text is shown as source because it has too much markup to format.")
TOO_MUCH_WORK = f'<p class="unformatted">{mark(_TOO_MUCH_MARKUP)}</p>\n'

# In a person's message, only fences, code spans and addresses have a meaning.
_FENCE = re.compile(r" {0,3}(`{3,})([^`]*)")
_BACKTICKS = re.compile(r"`+")
_MARK = re.compile(rf"`+|{URL.pattern}", re.IGNORECASE)


def render_markdown(text: str, *, work: WorkBudget | None = None) -> str:
    """Render the model's Markdown.

    A text that takes more than ``work`` is shown as it was written, with a note that says so."""
    render = partial(render_source, highlight=True, work=work or WorkBudget())
    return _render_safely(render, text)


def render_source(source: str, *, highlight: bool, work: WorkBudget) -> str:
    """Render normalised Markdown; unlike ``render_markdown``, this may raise."""
    if is_plain_paragraph(source):
        return f"<p>{escape_text(mdTrim(source))}</p>\n"
    return render_tokens(parse(source, work=work), highlight=highlight, work=work)


def is_plain_paragraph(source: str) -> bool:
    """Return whether ``source`` is a single Markdown paragraph without any markup.

    False negatives are possible. Most text that is rendered while an answer streams takes this
    shortcut."""
    return _PLAIN_PARAGRAPH.fullmatch(source) is not None and "://" not in source


def render_person_text(text: str) -> str:
    """Render a person's message: verbatim, except for code and web addresses.

    Its paragraphs (``p.verbatim``) need ``white-space: pre-wrap``."""
    return _render_safely(render_verbatim, text)


def render_plain(text: str) -> str:
    """Escape a program's output for use in ``<pre>``, without terminal codes.

    HTML drops a line break right after ``<pre>``, so put a line break or ``<code>`` there."""
    return escape(normalise_source(strip_terminal_codes(text)))


def show_as_written(source: str) -> str:
    """Return normalised text as HTML without any layout."""
    return f'<p class="verbatim">{escape_text(source)}</p>\n'


def _render_safely(render: Callable[[str], str], text: str) -> str:
    """Render the text, or show it as it was written if the renderer fails."""
    source = normalise_source(text)
    try:
        return render(source)
    except TooMuchWork:
        return TOO_MUCH_WORK + show_as_written(source)
    except Exception:
        logger.exception("text_not_rendered", extra={"fields": {"chars": len(source)}})
        return show_as_written(source)


def render_verbatim(source: str) -> str:
    """Render a person's message (normalised text) as sanitised HTML. May raise TooMuchWork."""
    work = WorkBudget()
    lines = source.removesuffix("\n").split("\n")
    parts: list[str] = []
    start = index = 0
    while index < len(lines):
        fence = _FENCE.fullmatch(lines[index])
        index += 1
        if fence is None:
            continue
        parts.append(_render_paragraph(lines[start : index - 1], work))
        closing = re.compile(rf" {{0,3}}`{{{len(fence[1])},}}[ \t]*")
        # The end of the text closes a fence too.
        numbers = range(index, len(lines))
        end = next((n for n in numbers if closing.fullmatch(lines[n])), len(lines))
        code = "".join(f"{line}\n" for line in lines[index:end])
        highlight = work.spend_on_code(len(code))
        parts.append(render_code_block(code, info=fence[2], highlight=highlight))
        start = index = end + 1
    parts.append(_render_paragraph(lines[start:], work))
    return sanitise("".join(parts))


def _render_paragraph(lines: list[str], work: WorkBudget) -> str:
    """Render the lines without blank lines at either end; return "" if all are blank."""
    filled = [index for index, line in enumerate(lines) if line and not line.isspace()]
    if not filled:
        return ""
    text = "\n".join(_render_line(line, work) for line in lines[filled[0] : filled[-1] + 1])
    return f'<p class="verbatim">{text}</p>'


def _render_line(line: str, work: WorkBudget) -> str:
    if "`" not in line and "://" not in line:
        return escape_text(line)
    # Map the start of each run of backticks to the start of the next run of the same length. One
    # pass over the line finds them all.
    closers: dict[int, int] = {}
    next_run: dict[int, int] = {}
    for run in reversed(list(_BACKTICKS.finditer(line))):
        length = len(run[0])
        if length in next_run:
            closers[run.start()] = next_run[length]
        next_run[length] = run.start()
    html = ""
    position = 0
    for match in _MARK.finditer(line):
        if match.start() < position:
            continue
        html += escape_text(line[position : match.start()])
        if match[0][0] != "`":
            url = trim_url(match[0])
            position = match.start() + len(url)
            work.spend_on_address(url)
            href, shown = normalise_url(url), escape_text(url)
            host = web_host(href)
            link = f'<a href="{escape_attribute(href)}" title="{host}">{shown}</a>'
            html += link if host else shown
        elif closer := closers.get(match.start()):
            html += f"<code>{escape_text(line[match.end() : closer])}</code>"
            position = closer + len(match[0])
        else:
            html += match[0]
            position = match.end()
    return html + escape_text(line[position:])
