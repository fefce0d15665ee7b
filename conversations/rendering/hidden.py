"""Text as HTML of which nothing stays unseen (see ``domain.unseen``)."""

from conversations.domain.unseen import MAX_WRITTEN_OUT_CHARS, write_out

from .source_text import escape_text


def show_hidden(text: str, *, most: int = MAX_WRITTEN_OUT_CHARS) -> str:
    """The text as HTML, for use between tags; line ends and tabs stay as they are."""
    if text.isascii() and text.isprintable():
        return escape_text(text)
    return write_out(escape_text(text), name=_as_html, most=most)


def _as_html(code_point: str) -> str:
    return f'<span class="ctl">{code_point}</span>'
