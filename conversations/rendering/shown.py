"""The HTML of a block that is being written, kept for as much of it as will stay."""

from markdown_it.token import Token

from .markdown_parser import parse, parse_inline, render_tokens
from .mending import mend_inline
from .open_text import Pieces
from .work import Work

_TABLE_END = "</table></div>\n"
_ROWS_START, _ROWS_END = "<tbody>\n", "</tbody>\n"


class ShownParagraph:
    """A paragraph of one line: words before the last open mark are not looked at again."""

    def __init__(self) -> None:
        self._html = Pieces("<p>")
        self._size = 0

    def html(self, text: str, work: Work) -> str:
        rest = text[self._size :]
        mended, settled = mend_inline(rest)
        if settled:
            self._html.append(_render_inline(rest[:settled], work))
            self._size += settled
            mended = mended[settled:]
        return f"{self._html.text}{_render_inline(mended, work)}".rstrip() + "</p>\n"


class ShownParts:
    """A list or table: the HTML of the items or rows that have ended is kept."""

    def __init__(self) -> None:
        self._is_loose = False
        self._size = 0
        self._html = Pieces()
        self._end = ""

    def extend(self, settled: str, *, head: str, is_loose: bool, work: Work) -> None:
        """Render what is new in ``settled``; all of it if the list has become loose."""
        if is_loose != self._is_loose:
            self._is_loose, self._size = is_loose, 0
        if self._size == len(settled):
            return
        new = head + settled[self._size :] if self._size else settled
        start, parts, end = _split_container(
            self._render(parse(new, work=work), highlight=True, work=work)
        )
        if not self._size:
            self._html, self._end = Pieces(start), end
        self._html.append(parts)
        self._size = len(settled)

    def html(self, tokens: list[Token], work: Work) -> str:
        """All of it, ending with the part that ``tokens`` begin with, and what they hold
        behind it."""
        container, others = _split_tokens(tokens)
        html = self._render(container, highlight=False, work=work)
        _, parts, _ = _split_container(html) if html else ("", "", "")
        behind = render_tokens(others, highlight=False, work=work) if others else ""
        return self._html.text + parts + self._end + behind

    def _render(self, tokens: list[Token], *, highlight: bool, work: Work) -> str:
        if self._is_loose:
            for token in tokens:
                token.hidden = token.hidden and token.level != 2
        return render_tokens(tokens, highlight=highlight, work=work)


def _render_inline(text: str, work: Work) -> str:
    if not text:
        return ""
    return render_tokens(parse_inline(text, work=work), highlight=False, work=work)


def _split_tokens(tokens: list[Token]) -> tuple[list[Token], list[Token]]:
    """The tokens of the first block, and the others."""
    for index, token in enumerate(tokens):
        if token.level == 0 and token.nesting == -1:
            return tokens[: index + 1], tokens[index + 1 :]
    return tokens, []


def _split_container(html: str) -> tuple[str, str, str]:
    """The opening, the items or rows, and the closing of a list's or table's HTML."""
    if not html.endswith(_TABLE_END):
        start = html.index("\n") + 1
        end = html.rindex("</")
    elif _ROWS_START in html:
        start = html.index(_ROWS_START) + len(_ROWS_START)
        end = html.rindex(_ROWS_END)
    else:
        return html.removesuffix(_TABLE_END) + _ROWS_START, "", _ROWS_END + _TABLE_END
    return html[:start], html[start:end], html[end:]
