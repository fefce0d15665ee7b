"""The block of a streaming text that is still being written.

Both kinds take text until the block has ended, then hand on: the text of what is
final, who takes over, and the text that is left for them. Neither does work that
grows with what it has already seen, but for joining strings.
"""

import re

from markdown_it.token import Token

from .code_blocks import CODE_BLOCK_END, find_language, open_code_block
from .markdown import is_plain_paragraph, render_markdown
from .markdown_parser import parse, render_tokens
from .mending import mend
from .outline import CODE, FENCE, LIST, TABLE, Block, closing_fence, is_final, outline
from .source_text import escape_text

RENDER_LIMIT = 16_000
"""Characters from which on the part being written is shown as text, not rendered."""

_SMALL = 2_000
"""Characters up to which the part being written is parsed at every line."""

_GROWTH = 1.25
"""By how much a longer one has to grow to be parsed again without a sign of its end."""

_BLANK_LINE = re.compile(r"^[ \t]*\n", re.MULTILINE)
_LINE_BEYOND_LIST = re.compile(r"^[ \t]*\n(?=[^\s\-+*0-9])", re.MULTILINE)
_FENCE_LINE = re.compile(r"( {0,3})(`{3,}|~{3,})(.*)\n")

_TABLE_END = "</table></div>\n"
_ROWS_START, _ROWS_END = "<tbody>\n", "</tbody>\n"


class Pieces:
    """A string that is cheap to append to."""

    def __init__(self, text: str = "") -> None:
        self._pieces = [text]
        self.size = len(text)

    def append(self, text: str) -> None:
        self._pieces.append(text)
        self.size += len(text)

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0]


type OpenText = OpenBlock | OpenFence
type Taken = tuple[list[str], OpenText, str]
"""The text of blocks that are final, what takes over, and the text left for it."""


class OpenFence:
    """A code fence whose closing line has not come."""

    def __init__(self, opening_line: str) -> None:
        fence = _FENCE_LINE.fullmatch(opening_line)
        assert fence is not None  # noqa: S101 (the parser has found a fence here)
        indent, self._markup, info = fence.groups()
        self._indent = re.compile(rf"^ {{1,{len(indent)}}}", re.MULTILINE) if indent else None
        self._closing = closing_fence(self._markup)
        self._source = Pieces(opening_line)
        self._html = Pieces(open_code_block(find_language(info)))
        self._line = Pieces()

    def take(self, text: str) -> Taken:
        self._line.append(text)
        if "\n" in text:
            return self._take_lines()
        return [], self, ""

    def _take_lines(self) -> Taken:
        text = self._line.text
        lines = text[: text.rindex("\n") + 1]
        if closing := self._closing.search(lines):
            end = closing.end() + 1
            return [self._source.text + text[:end]], OpenBlock(), text[end:]
        self._source.append(lines)
        self._html.append(self._escape(lines))
        self._line = Pieces(text[len(lines) :])
        return [], self, ""

    def html(self) -> str:
        line = self._line.text
        is_half_closing = not line.strip().strip(self._markup[0])
        return self._html.text + ("" if is_half_closing else self._escape(line)) + CODE_BLOCK_END

    def close(self) -> list[str]:
        return [self._source.text + self._line.text]

    def _escape(self, code: str) -> str:
        return escape_text(self._indent.sub("", code) if self._indent else code)


class OpenBlock:
    """Any other block, or nothing yet.

    ``_settled`` characters of it are items of a list, or the head and rows of a
    table, that have ended; only what follows is parsed and rendered again.
    """

    def __init__(self, text: str = "", block: Block | None = None) -> None:
        self._text = Pieces(text)
        self._kind = block.kind if block else ""
        self._settled = 0
        self._head = ""
        self._is_loose = False
        self._parsed = 0
        self._whole = text.rfind("\n") + 1
        self._shown = _ShownParts()
        if block:
            self._settle(block)

    def take(self, text: str) -> Taken:
        begins_line = self._text.size == self._whole
        self._text.append(text)
        if "\n" in text or (begins_line and self._kind in (LIST, CODE) and text[0].isalpha()):
            return self._take_lines()
        return [], self, ""

    def _take_lines(self) -> Taken:
        text = self._text.text
        end = _find_parsable_end(text)
        is_due = self._is_due(text, end)
        self._whole = text.rfind("\n") + 1
        return self._parse(text, end) if is_due else ([], self, "")

    def _is_due(self, text: str, end: int) -> bool:
        """Whether to look for the end of the block now; at every line would be quadratic."""
        size = end - self._settled
        if size <= _SMALL or size >= self._parsed * _GROWTH:
            return True
        line_before = text.rfind("\n", 0, max(self._whole - 1, 0)) + 1
        sign = _LINE_BEYOND_LIST if self._kind in (LIST, CODE) else _BLANK_LINE
        return sign.search(text, line_before, end + 1) is not None

    def _parse(self, text: str, end: int) -> Taken:
        blocks = self._outline(text[:end])
        if not blocks:
            return self._drop_definitions(text, end)
        *ended, last = blocks
        sources = [text[block.start : block.end] for block in ended]
        if is_final(last, text[:end]):
            return [*sources, text[last.start : last.end]], OpenBlock(), text[last.end :]
        if last.kind == FENCE:
            body = text.index("\n", last.start) + 1
            return sources, OpenFence(text[last.start : body]), text[body:]
        if last.start > 0:
            return sources, OpenBlock(text[last.start :], last), ""
        self._kind = last.kind
        self._settle(last)
        self._parsed = end - self._settled
        return [], self, ""

    def _outline(self, lines: str) -> list[Block]:
        """The blocks in ``lines``, parsed from the last item or row on."""
        if not self._settled:
            return outline(lines)
        distance = self._settled - len(self._head)
        blocks = outline(self._head + lines[self._settled :])
        for block in blocks:
            block.move(distance)
        blocks[0].start = 0
        return blocks

    def _drop_definitions(self, text: str, end: int) -> Taken:
        """Without a block there are only blank lines and link definitions."""
        self._parsed = end
        if _ends_with_blank_line(text[:end]):
            return [], OpenBlock(), text[end:]
        return [], self, ""

    def _settle(self, block: Block) -> None:
        self._settled = block.last_part - block.start
        self._is_loose = self._is_loose or block.is_loose
        if self._kind == TABLE and self._settled and not self._head:
            text = self._text.text
            self._head = text[: text.index("\n", text.index("\n") + 1) + 1]

    def close(self) -> list[str]:
        text = self._text.text
        return [text[block.start : block.end] for block in outline(text)]

    def html(self) -> str:
        text = self._text.text
        part = self._head + text[self._settled :]
        if is_plain_paragraph(part):
            return render_markdown(part)
        if len(part) > RENDER_LIMIT:
            return f'<p class="verbatim">{escape_text(text)}</p>\n'
        if not self._settled:
            return render_markdown(mend(part), highlight=False)
        self._shown.extend(text[: self._settled], head=self._head, is_loose=self._is_loose)
        return self._shown.with_part(mend(part))


class _ShownParts:
    """The HTML of the settled items or rows of a list or table."""

    def __init__(self) -> None:
        self._is_loose = False
        self._size = 0
        self._html = Pieces()
        self._end = ""

    def extend(self, settled: str, *, head: str, is_loose: bool) -> None:
        """Render what is new in ``settled``; all of it if the list has become loose."""
        if is_loose != self._is_loose:
            self._is_loose, self._size = is_loose, 0
        if self._size == len(settled):
            return
        new = settled[self._size :] if not self._size else head + settled[self._size :]
        start, parts, end = _split_container(self._render(parse(new), highlight=True))
        if not self._size:
            self._html, self._end = Pieces(start), end
        self._html.append(parts)
        self._size = len(settled)

    def with_part(self, source: str) -> str:
        """The whole container with the part being written, and what stands behind it."""
        container, others = _split_tokens(parse(source))
        html = self._render(container, highlight=False)
        parts = _split_container(html)[1] if html else ""
        behind = render_tokens(others, highlight=False) if others else ""
        return self._html.text + parts + self._end + behind

    def _render(self, tokens: list[Token], *, highlight: bool) -> str:
        if self._is_loose:
            for token in tokens:
                token.hidden = token.hidden and token.level != 2
        return render_tokens(tokens, highlight=highlight)


def _find_parsable_end(text: str) -> int:
    """The end of the whole lines of ``text``, or of all of it where that is as good:
    behind a blank line a letter begins a block of its own, whatever comes next."""
    whole = text.rfind("\n") + 1
    begins_block = text[whole : whole + 1].isalpha() and _ends_with_blank_line(text[:whole])
    return len(text) if begins_block else whole


def _ends_with_blank_line(lines: str) -> bool:
    return not lines[lines.rfind("\n", 0, max(len(lines) - 1, 0)) + 1 :].strip(" \t\n")


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
        return html[:start], html[start:end], html[end:]
    if _ROWS_START not in html:
        return html.removesuffix(_TABLE_END) + _ROWS_START, "", _ROWS_END + _TABLE_END
    start = html.index(_ROWS_START) + len(_ROWS_START)
    end = html.rindex(_ROWS_END)
    return html[:start], html[start:end], html[end:]
