"""Jupyter notebooks (nbformat 4) as HTML: their cells and outputs.

https://nbformat.readthedocs.io/en/latest/format_description.html
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from conversations.domain.attachments import IMAGE_TYPES
from conversations.domain.messages import say, say_number
from conversations.domain.text import number_text, storable

from .code_blocks import find_language, highlight_file
from .markdown import render_markdown
from .markdown_parser import MAX_STEPS, WorkBudget
from .messages import mark
from .source_text import escape_text, normalise_source, without_marks
from .terminal import render_terminal

MAX_CELLS, MAX_CELL_OUTPUTS = 500, 100
MAX_NOTEBOOK_STEPS = 5 * MAX_STEPS  # For all Markdown of a notebook.
MAX_OUTPUT_LINES, MAX_OUTPUT_CHARS, MAX_SPANS = 500, 50_000, 2_000
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+")
PICTURE = mark(say("Image produced by the cell"))
REST = mark(say("The rest of this output is not shown."))


def render_notebook(text: str, *, clean: Callable[[Iterable[str]], dict[str, str]]) -> str | None:
    """Return the notebook as HTML with marks (``messages``), or None if it is not a notebook.

    ``clean`` removes unsafe HTML from the outputs of cells. It leaves out texts that it could not
    clean."""
    try:
        notebook = json.loads(text)
        cells = notebook["cells"]
        info = notebook.get("metadata", {}).get("language_info", {})
        name = str(info.get("name") or "python")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(cells, list):
        return None
    cells_shown = [cell for cell in cells[:MAX_CELLS] if isinstance(cell, dict)]
    codes = (_source_of(cell) for cell in cells_shown if cell.get("cell_type") == "code")
    coloured = highlight_file(codes, find_language(name))
    cleaned = clean(html for cell in cells_shown for html in _html_outputs(cell))
    work = WorkBudget(MAX_NOTEBOOK_STEPS)
    html = "".join(_render_cell(cell, coloured, cleaned, work) for cell in cells_shown)
    hidden_cells = len(cells) - MAX_CELLS
    if hidden_cells > 0:
        note = say_number(
            "%(count)s more cell is not shown.",
            "%(count)s more cells are not shown.",
            hidden_cells,
            count=number_text(hidden_cells),
        )
        html += f"<p>{mark(note)}</p>"
    return html


def _outputs(cell: dict[str, Any]) -> list[dict[str, Any]]:
    outputs = cell.get("outputs")
    if not isinstance(outputs, list):
        return []
    return [output for output in outputs if isinstance(output, dict)]


def _html_outputs(cell: dict[str, Any]) -> Iterator[str]:
    for output in _outputs(cell)[:MAX_CELL_OUTPUTS]:
        data = output.get("data")
        html = _html_of(data) if isinstance(data, dict) else ""
        if html:
            yield html


def _html_of(data: dict[str, Any]) -> str:
    return _text(data.get("text/html")) or _text(data.get("image/svg+xml"))


def _source_of(cell: dict[str, Any]) -> str:
    return normalise_source(_text(cell.get("source")))


def _render_cell(
    cell: dict[str, Any], coloured: dict[str, str], cleaned: dict[str, str], work: WorkBudget
) -> str:
    source = _source_of(cell)
    if cell.get("cell_type") == "markdown":
        return f'<section class="md">{render_markdown(source, work=work)}</section>'
    is_code = cell.get("cell_type") == "code"
    code = coloured[source] if is_code else escape_text(source)
    count = cell.get("execution_count")
    label = f"[{count}]" if isinstance(count, int) else "[ ]"
    outputs = _outputs(cell)
    outputs_html = "".join(_render_outputs(outputs[:MAX_CELL_OUTPUTS], cleaned, work))
    if len(outputs) > MAX_CELL_OUTPUTS:
        outputs_html += f"<p>{REST}</p>"
    return (
        f'<section class="cell"><span class="count">{label}</span>'
        f'<pre><code class="hl">{code}</code></pre>{outputs_html}</section>'
    )


def _render_outputs(
    outputs: list[dict[str, Any]], cleaned: dict[str, str], work: WorkBudget
) -> Iterator[str]:
    for output in outputs:
        if output.get("output_type") == "stream":
            yield _render_printed(_text(output.get("text")))
        elif output.get("output_type") == "error":
            trace = output.get("traceback")
            lines = trace if isinstance(trace, list) else [output.get("evalue")]
            yield _render_printed("\n".join(map(_text, lines)))
        elif isinstance(output.get("data"), dict):
            yield _render_data(output["data"], cleaned, work)


def _render_data(data: dict[str, Any], cleaned: dict[str, str], work: WorkBudget) -> str:
    """Render the richest representation of an output that can be shown.

    nbformat stores several representations of the same output, by media type."""
    for kind in IMAGE_TYPES:
        picture = _text(data.get(kind))
        if picture and _BASE64.fullmatch(picture):
            return f'<img alt="{PICTURE}" src="data:{kind};base64,{picture}">'
    html = _html_of(data)
    if html in cleaned:
        return f'<div class="given">{without_marks(cleaned[html])}</div>'
    markdown = _text(data.get("text/markdown")) or _text(data.get("text/latex"))
    if markdown:
        return f'<div class="md">{render_markdown(markdown, work=work)}</div>'
    return _render_printed(_text(data.get("text/plain")))


def _render_printed(text: str) -> str:
    shown = render_terminal(
        text, most_lines=MAX_OUTPUT_LINES, most_chars=MAX_OUTPUT_CHARS, most_spans=MAX_SPANS
    )
    cut = f"<p>{REST}</p>" if shown.is_cut else ""
    return f'<pre class="printed"><code>{shown.html}</code></pre>{cut}'


def _text(value: Any) -> str:
    """Return a text that nbformat stores as a string or as a list of lines."""
    if isinstance(value, list):
        value = "".join(part for part in value if isinstance(part, str))
    return without_marks(storable(value)) if isinstance(value, str) else ""
