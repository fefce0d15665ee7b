"""Previews of files as HTML, for a frame that has no origin.

The file was written by a model, a program or a person, so no part of it runs: scripts are removed
and forbidden, and only resources inside the file are loaded. A page with scripts could send the
file's content elsewhere whatever its policy says (WebRTC; see docs/adr/0037).
"""

import csv
import io
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from conversations.domain.attachments import is_pdf
from conversations.domain.messages import Message, join_messages, say, say_number
from conversations.domain.text import MAX_JSON_VALUES, has_more_values, number_text, write_json

from .code_blocks import (
    MAX_CODE_CHARS,
    MAX_COLOURED_CHARS,
    PLAIN_LANGUAGE,
    find_language,
    highlight_file,
    render_code_block,
)
from .markdown import render_markdown
from .messages import fill_marks, translate
from .notebooks import render_notebook
from .programs import run_program
from .source_text import escape_attribute, normalise_source, show_hidden

IMAGE, SVG, PDF, TEXT = "image", "svg", "pdf", "text"
MARKDOWN, HTML, TABLE, NOTEBOOK = "markdown", "html", "table", "notebook"
NONE = ""
"""The kind of a file without a preview."""

KIND_LABELS = {
    IMAGE: say("Image"),
    SVG: say("SVG image"),
    PDF: "PDF",
    TEXT: say("Text"),
    MARKDOWN: "Markdown",
    HTML: "HTML",
    TABLE: say("Table"),
    NOTEBOOK: say("Notebook"),
    NONE: say("Binary"),
}

MAX_LINES = 5_000
MAX_ROWS, MAX_COLUMNS, MAX_CELL_CHARS = 1_000, 100, 1_000
MAX_PDF_PAGES = 20  # Pages of a PDF in one preview.
PAGE_PIXELS = 1200  # The width of a PDF page: sharp on a screen of twice the density.

_SUFFIXES = {
    **dict.fromkeys(("md", "markdown", "mdown", "mkd"), MARKDOWN),
    **dict.fromkeys(("html", "htm", "xhtml"), HTML),
    **dict.fromkeys(("csv", "tsv"), TABLE),
    "ipynb": NOTEBOOK,
    "svg": SVG,
}

_PICTURES: tuple[tuple[bytes, int, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF87a", 0, "image/gif"),
    (b"GIF89a", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    (b"ftypavif", 4, "image/avif"),
    (b"BM", 0, "image/bmp"),
    (b"\x00\x00\x01\x00", 0, "image/x-icon"),
)


_FRONT_MATTER = re.compile(r"---[ \t]*\n(?=[\w-]+:)(.*?^)---[ \t]*$", re.DOTALL | re.MULTILINE)

# A field in quotes. A quotation mark within a field, as for inches, does not open one.
_QUOTED = re.compile(r'(?<![^,;\t|\n])"(?:[^"]|"")*+(?:"|\Z)')


class Preview(NamedTuple):
    """A preview of a file.

    ``html`` is the body of the frame's page, and ``note`` says what it leaves out. ``is_page``: the
    HTML has a style of its own."""

    html: str
    note: str = ""
    is_page: bool = False


def preview_kind(name: str, data: bytes, *, is_text: bool) -> str:
    """Return the kind of preview, by the file's content and then by its name."""
    if is_pdf(data, name, is_text=is_text):
        return PDF
    if _picture_type(data) and not is_text:
        return IMAGE
    return _SUFFIXES.get(name.rpartition(".")[2].lower(), TEXT) if is_text else NONE


def render_preview(
    name: str, data: bytes, text: str | None, *, is_cut: bool, first_page: int = 1
) -> Preview:
    """Return the preview of a file.

    ``text`` is the decoded ``data``, or None if the file is not text. ``is_cut``: both are only the
    beginning of a longer file. ``first_page`` is the first page of a PDF to show."""
    if not data or text == "":  # Also if the file holds only a byte order mark.
        return Preview("", say("The file is empty."))
    kind = preview_kind(name, data, is_text=text is not None)
    is_bytes = text is None or kind in (SVG, PDF)
    if is_cut and is_bytes:
        return Preview("", say("This file is too large to preview. Download it to open it."))
    if text is None or is_bytes:
        return _show_bytes(kind, name, data, first_page)
    if is_cut and kind in (HTML, NOTEBOOK):  # The beginning alone would be another page.
        kind = TEXT
    source = normalise_source(text)
    show = _RENDERERS.get(kind, _show_text)
    shown = show(name, source)
    if is_cut:
        note = say("Only the beginning of this file is shown. Download the rest.")
        return shown._replace(note=note)
    return shown


def _show_bytes(kind: str, name: str, data: bytes, first_page: int) -> Preview:
    if kind == PDF:
        return _show_pdf(data, first_page)
    media_type = "image/svg+xml" if kind == SVG else _picture_type(data)
    if not media_type:
        return Preview("", say("This type of file cannot be previewed. Download it to open it."))
    # As a picture, an SVG runs no scripts and loads no resources.
    picture = b64encode(data).decode("ascii")
    alt = escape_attribute(name)
    return Preview(
        f'<p class="picture"><img alt="{alt}" src="data:{media_type};base64,{picture}"></p>'
    )


def _picture_type(data: bytes) -> str:
    for signature, offset, media_type in _PICTURES:
        if data.startswith(signature, offset):
            return media_type
    return ""


def _show_pdf(data: bytes, first_page: int) -> Preview:
    drawn = run_program("draw_pdf.py", first_page, MAX_PDF_PAGES, PAGE_PIXELS, data=data)
    if drawn is None:
        note = say("This PDF takes too much time or memory to preview. Download it to open it.")
        return Preview("", note)
    if not drawn.get("total"):
        return Preview("", say("This PDF cannot be shown because it is damaged or protected."))
    total, pages = drawn["total"], drawn["pages"]
    if not pages:
        return Preview("", say("This PDF ends at page %(last)s.", last=total))
    html = "".join(_show_page(number, page) for number, page in enumerate(pages, first_page))
    if len(pages) == total:
        return Preview(html)
    last = first_page + len(pages) - 1
    numbers = {"first": first_page, "last": last, "total": number_text(total)}
    return Preview(html, say("Pages %(first)s to %(last)s of %(total)s.", **numbers))


def _show_page(number: int, page: str) -> str:
    if not page:
        damaged = say("Page %(number)s cannot be shown because it is damaged.", number=number)
        return f"<p>{translate(damaged)}</p>"
    alt = translate(say("Page %(number)s", number=number))
    return f'<p class="picture page"><img alt="{alt}" src="data:image/webp;base64,{page}"></p>'


def _show_text(name: str, source: str) -> Preview:
    total = source.count("\n") + (not source.endswith("\n"))
    count = min(total, MAX_LINES)
    shown = "\n".join(source.split("\n", count)[:count])
    language = find_language(name)
    if language == PLAIN_LANGUAGE or len(shown) > MAX_COLOURED_CHARS:
        code = show_hidden(shown)
    else:
        code = highlight_file([shown], language)[shown]
    numbers = "\n".join(map(str, range(1, count + 1)))
    html = (
        f'<div class="source"><pre class="numbers" aria-hidden="true">{numbers}</pre>'
        f'<pre><code class="hl">{code}</code></pre></div>'
    )
    hidden_lines = total - count
    return Preview(html, _hidden_lines_note(hidden_lines) if hidden_lines else "")


def _hidden_lines_note(count: int) -> Message:
    return say_number(
        "%(count)s more line is not shown.",
        "%(count)s more lines are not shown.",
        count,
        count=number_text(count),
    )


def _show_markdown(name: str, source: str) -> Preview:
    html = ""
    front = _FRONT_MATTER.match(source)
    if front:  # Markdown would take it for a heading.
        is_short = len(front[1]) <= MAX_CODE_CHARS
        html = render_code_block(front[1], info="yaml", highlight=is_short)
        source = source[front.end() :]
    return Preview(f'<div class="md">{fill_marks(html + render_markdown(source))}</div>')


def _show_html(name: str, source: str) -> Preview:
    cleaned = _clean_pages([source])
    if source in cleaned:
        return Preview(cleaned[source], is_page=True)
    note = say("This page is too large to render, so its source is shown.")
    return _show_source(name, source, note)


def _show_notebook(name: str, source: str) -> Preview:
    if has_more_values(source):
        limit = number_text(MAX_JSON_VALUES)
        note = say(
            "This notebook has more than %(limit)s values, so its source is shown.", limit=limit
        )
        return _show_source(name, source, note)
    html = render_notebook(source, clean=_clean_pages)
    return _show_text(name, source) if html is None else Preview(fill_marks(html))


def _show_source(name: str, source: str, note: Message) -> Preview:
    """Show the source of a file instead of its usual preview; ``note`` gives the reason."""
    shown = _show_text(name, source)
    return shown._replace(note=join_messages([note, shown.note]))


def _clean_pages(pages: Iterable[str]) -> dict[str, str]:
    """Map each HTML text to the same text without scripts, external resources and links.

    Style sheets stay. The result is empty if the program fails or takes too long."""
    distinct = list(dict.fromkeys(pages))
    if not distinct:
        return {}
    cleaned = run_program("clean_pages.py", data=write_json(distinct).encode())
    return dict(zip(distinct, cleaned or (), strict=False))


def _show_table(name: str, source: str) -> Preview:
    rows: list[list[str]] = []
    total = width = 0
    try:
        for total, row in enumerate(_read_rows(name, source), 1):
            width = max(width, len(row))
            if total <= MAX_ROWS + 1:  # Lists take many times the memory of their text.
                rows.append([cell[:MAX_CELL_CHARS] for cell in row[:MAX_COLUMNS]])
    except csv.Error:
        return _show_text(name, source)
    head, *body = rows
    hidden_rows = total - 1 - MAX_ROWS
    notes = []
    if hidden_rows > 0:
        note = say_number(
            "%(count)s more row is not shown.",
            "%(count)s more rows are not shown.",
            hidden_rows,
            count=number_text(hidden_rows),
        )
        notes.append(note)
    hidden_columns = width - MAX_COLUMNS
    if hidden_columns > 0:
        note = say_number(
            "%(count)s more column is not shown.",
            "%(count)s more columns are not shown.",
            hidden_columns,
            count=number_text(hidden_columns),
        )
        notes.append(note)
    html = (
        f'<table class="sheet"><thead><tr><th></th>{_cells("th", head)}</tr></thead><tbody>'
        + "".join(
            f"<tr><th>{number}</th>{_cells('td', row)}</tr>" for number, row in enumerate(body, 1)
        )
        + "</tbody></table>"
    )
    return Preview(html, join_messages(notes))


def _read_rows(name: str, source: str) -> Iterator[list[str]]:
    delimiter = "\t"
    if not name.lower().endswith(".tsv"):
        head = _QUOTED.sub("", source[:4096]).partition("\n")[0]
        delimiter = max(",;\t|", key=head.count)
    return csv.reader(io.StringIO(source), delimiter=delimiter, strict=False)


def _cells(tag: str, row: list[str]) -> str:
    return "".join(f"<{tag}>{show_hidden(cell)}</{tag}>" for cell in row)


_RENDERERS = {
    TEXT: _show_text,
    MARKDOWN: _show_markdown,
    HTML: _show_html,
    TABLE: _show_table,
    NOTEBOOK: _show_notebook,
}
