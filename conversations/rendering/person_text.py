"""A person's message as HTML: what they typed, not what Markdown would make of it.

Only three things are more than text: a fenced code block, an inline code span
(both by backticks) and an http(s) address. All else stays as typed, ``__init__``
and ``# heading`` included; line breaks and runs of spaces are kept by the style
of ``p.verbatim`` (``white-space: pre-wrap``), so there is no white space in the
markup but the person's own.
"""

import re
from collections.abc import Iterator

from .code_blocks import render_code_block
from .markdown_parser import Work
from .sanitiser import URL, normalise_url, sanitise, trim_url, web_host
from .source_text import escape_text

_FENCE = re.compile(r" {0,3}(`{3,})([^`]*)")
_BACKTICKS = re.compile(r"`+")
_MARK = re.compile(rf"`+|{URL.pattern}", re.IGNORECASE)


def render_verbatim(source: str) -> str:
    """Turn a person's message (normalised text) into sanitised HTML. Raises TooMuchWork."""
    work = Work()
    return sanitise("".join(_render_parts(source.removesuffix("\n").split("\n"), work)))


def _render_parts(lines: list[str], work: Work) -> Iterator[str]:
    """The HTML of the code blocks and of the paragraphs between them."""
    start = index = 0
    while index < len(lines):
        fence = _FENCE.fullmatch(lines[index])
        index += 1
        if fence is None:
            continue
        yield _render_paragraph(lines[start : index - 1], work)
        end = _find_closing_fence(lines, index, length=len(fence[1]))
        code = "".join(f"{line}\n" for line in lines[index:end])
        highlight = work.take_code(len(code))
        yield render_code_block(code, info=fence[2], highlight=highlight)
        start = index = end + 1
    yield _render_paragraph(lines[start:], work)


def _find_closing_fence(lines: list[str], start: int, *, length: int) -> int:
    """The index of the line that closes a fence; the end of the text closes it too."""
    closing = re.compile(rf" {{0,3}}`{{{length},}}[ \t]*")
    for index in range(start, len(lines)):
        if closing.fullmatch(lines[index]):
            return index
    return len(lines)


def _render_paragraph(lines: list[str], work: Work) -> str:
    """The lines without blank ones at either end; nothing if there are no others."""
    filled = [index for index, line in enumerate(lines) if line and not line.isspace()]
    if not filled:
        return ""
    text = "\n".join(_render_line(line, work) for line in lines[filled[0] : filled[-1] + 1])
    return f'<p class="verbatim">{text}</p>'


def _render_line(line: str, work: Work) -> str:
    if "`" not in line and "://" not in line:
        return escape_text(line)
    parts: list[str] = []
    position = 0
    closers = _match_backticks(line)
    for mark in _MARK.finditer(line):
        if mark.start() < position:
            continue
        end, html = _render_mark(line, mark, closers, work)
        parts += [escape_text(line[position : mark.start()]), html]
        position = end
    return "".join(parts) + escape_text(line[position:])


def _match_backticks(line: str) -> dict[int, int]:
    """For each run of backticks the start of the next run as long as itself."""
    closers: dict[int, int] = {}
    next_run: dict[int, int] = {}
    for run in reversed(list(_BACKTICKS.finditer(line))):
        length = run.end() - run.start()
        if length in next_run:
            closers[run.start()] = next_run[length]
        next_run[length] = run.start()
    return closers


def _render_mark(
    line: str, mark: re.Match[str], closers: dict[int, int], work: Work
) -> tuple[int, str]:
    """Where a code span or an address ends, and its HTML; plain text if it is neither."""
    if mark[0][0] != "`":
        return _render_url(mark, work)
    closer = closers.get(mark.start())
    if closer is None:
        return mark.end(), mark[0]
    code = escape_text(line[mark.end() : closer])
    return closer + len(mark[0]), f"<code>{code}</code>"


def _render_url(mark: re.Match[str], work: Work) -> tuple[int, str]:
    url = trim_url(mark[0])
    work.spend_on_address(url)
    href = normalise_url(url)
    host = web_host(href)
    end = mark.start() + len(url)
    if host is None:
        return end, escape_text(url)
    quoted = escape_text(href).replace('"', "&quot;")
    return end, f'<a href="{quoted}" title="{host}">{escape_text(url)}</a>'
