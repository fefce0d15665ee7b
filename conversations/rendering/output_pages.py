"""What a tool gave, a page at a time, whatever its length."""

from dataclasses import dataclass
from uuid import UUID

from conversations.domain.searchable import RECALL_TOOL

from .figures import size_text
from .recall import link_turns, session_at
from .terminal import page_end, render_terminal, style_at

PAGE_LINES, PAGE_CHARS, PAGE_SPANS = 200, 20_000, 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPage:
    """A page that begins with the character ``start``. ``html`` goes into
    ``<pre><code>``. ``next`` is where the next one begins, None on the last; ``left``
    how much is behind this one, ``size`` how much there is."""

    html: str
    start: int
    next: int | None
    left: str
    size: str


def render_output_page(text: str, *, name: str, start: int, session: UUID) -> OutputPage:
    """The page of what the tool ``name`` gave. ``session`` is the call's."""
    end = page_end(text, start, most_lines=PAGE_LINES, most_chars=PAGE_CHARS)
    html = render_terminal(
        text[start:end],
        most_lines=PAGE_LINES,
        most_chars=PAGE_CHARS,
        most_spans=PAGE_SPANS,
        style=style_at(text, start),
    ).html
    if name == RECALL_TOOL:
        html = link_turns(html, session_at(text, start, session))
    return OutputPage(
        html=html,
        start=start,
        next=end if end < len(text) else None,
        left=size_text(max(0, len(text) - end)),
        size=size_text(len(text)),
    )
