"""Any block but a code fence, while it is still being written."""

import re
from dataclasses import dataclass, field
from typing import Protocol

from markdown_it.token import Token

from .code_blocks import CODE_BLOCK_END, find_language, open_code_block
from .markdown import is_plain_paragraph, render_markdown, render_source, show_as_written
from .markdown_parser import parse, parse_inline, render_tokens
from .mending import mend, mend_inline
from .outline import (
    CODE,
    FENCE,
    KINDS,
    LIST,
    TABLE,
    MarkdownBlock,
    closing_fence,
    is_final,
    may_become_table,
    outline,
)
from .source_text import escape_text
from .work import TooMuchWork, Work

# What the blocks of a streaming text have in common while they are being written.


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


class OpenText(Protocol):
    """The end of a streaming text that is not final."""

    @property
    def source(self) -> str:
        """Its text."""

    def take(self, text: str, work: Work) -> "Taken":
        """Take more text and say what has become of it. Raises TooMuchWork, with the text
        taken."""

    def html(self, work: Work) -> str:
        """The HTML of what is open, as if the text ended here. Raises TooMuchWork."""

    def close(self, work: Work) -> list[str]:
        """The text of each block in it, now that the text has ended. Raises TooMuchWork."""


class OpenPlain:
    """A text that takes too much work: no block is looked for in it until its end."""

    def __init__(self, text: str) -> None:
        self._text = Pieces(text)

    @property
    def source(self) -> str:
        return self._text.text

    def take(self, text: str, work: Work) -> "Taken":
        self._text.append(text)
        return Taken(self)

    def html(self, work: Work) -> str:
        raise TooMuchWork

    def close(self, work: Work) -> list[str]:
        return [self._text.text]


@dataclass(slots=True)
class Taken:
    """What has become of text: blocks that are ``final``, ``rest`` to be taken by
    whoever is ``next``. Without a ``next`` nothing is open any more."""

    next: OpenText | None
    final: list[str] = field(default_factory=list)
    rest: str = ""


# A code fence that is still being written.


_OPENING_LINE = re.compile(r"( {0,3})(`{3,}|~{3,})(.*)\n")


class OpenFence:
    """Code whose closing line has not come: nothing else is looked for in it.

    Its HTML grows with it, without colours. ``opening_line`` is one for the parser.
    """

    def __init__(self, opening_line: str) -> None:
        fence = _OPENING_LINE.fullmatch(opening_line)
        assert fence is not None
        indent, self._marks, info = fence.groups()
        self._indent = re.compile(rf"^ {{1,{len(indent)}}}", re.MULTILINE) if indent else None
        self._closing = closing_fence(self._marks)
        self._source = Pieces(opening_line)
        self._html = Pieces(open_code_block(find_language(info)))
        self._line = Pieces()

    @property
    def source(self) -> str:
        return self._source.text + self._line.text

    def take(self, text: str, work: Work) -> Taken:
        self._line.append(text)
        return self._take_lines() if "\n" in text else Taken(self)

    def _take_lines(self) -> Taken:
        text = self._line.text
        lines = text[: text.rindex("\n") + 1]
        if closing := self._closing.search(lines):
            end = closing.end() + 1
            return Taken(None, [self._source.text + text[:end]], text[end:])
        self._source.append(lines)
        self._html.append(self._escape(lines))
        self._line = Pieces(text[len(lines) :])
        return Taken(self)

    def html(self, work: Work) -> str:
        line = self._line.text
        may_close = not line.strip(" ").strip(self._marks[0])
        return self._html.text + ("" if may_close else self._escape(line)) + CODE_BLOCK_END

    def close(self, work: Work) -> list[str]:
        return [self.source]

    def _escape(self, code: str) -> str:
        return escape_text(self._indent.sub("", code) if self._indent else code)


# The HTML of a block that is being written, kept for as much of it as will stay.


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


RENDER_LIMIT = 8_000
"""Characters from which on the part being written is shown as text, not rendered."""

_SMALL = 2_000
"""Characters up to which the part being written is parsed at every line."""

_GROWTH = 1.25
"""By how much a longer one has to grow to be parsed again without a sign of its end."""

_LINE_START = 16
"""Characters of a line that say whether it begins an item, row or paragraph."""

_BLANK_LINE = re.compile(r"^[ \t]*\n", re.MULTILINE)
_LINE_BEYOND_LIST = re.compile(r"^[ \t]*\n(?=[^\s\-+*0-9])", re.MULTILINE)
_PART_START = {LIST: re.compile(r"(?:[-+*]|\d{1,9}[.)]) {1,4}\w"), TABLE: re.compile(r"\|")}
_PARAGRAPH_LINE = re.compile(r"(?:[^\W\d_]|[\"'(“]|\*\*\w|`[^`\n])[^\n]*")


class StreamingBlock:
    """The text from the first character behind the final blocks on.

    Once it is known to be a list or table, ``_settled`` characters of it are items
    that have ended, or the head and such rows; only what follows is parsed again,
    with a ``_lead`` before it that makes the parser take it for a continuation.
    """

    def __init__(self, text: str = "", block: MarkdownBlock | None = None) -> None:
        self._text = Pieces(text)
        self._whole = text.rfind("\n") + 1
        self._parsed = 0
        self._kind = ""
        self._settled = 0
        self._lead = ""
        self._is_loose = False
        self._shown_paragraph = ShownParagraph()
        self._shown_parts = ShownParts()
        if block:
            self._settle(block)

    @property
    def source(self) -> str:
        return self._text.text

    def take(self, text: str, work: Work) -> Taken:
        is_line_start = self._text.size - self._whole < _LINE_START
        self._text.append(text)
        if "\n" in text:
            return self._take_lines(work)
        if is_line_start and self._kind in (LIST, TABLE, CODE):
            return self._take_line_start(work)
        return Taken(self)

    def _take_lines(self, work: Work) -> Taken:
        text = self._text.text
        end = self._find_parsable_end(text, text.rfind("\n") + 1)
        is_due = self._is_due(text, end)
        self._whole = text.rfind("\n") + 1
        return self._parse(text, end, work) if is_due else Taken(self)

    def _take_line_start(self, work: Work) -> Taken:
        text = self._text.text
        end = self._find_parsable_end(text, self._whole)
        has_news = self._whole < end and self._settled < self._whole
        return self._parse(text, end, work) if has_news else Taken(self)

    def _find_parsable_end(self, text: str, whole: int) -> int:
        """The end of the ``whole`` lines, or of the text where the last line begins an
        item, a row, or behind a blank line a paragraph, whatever it goes on with."""
        line = text[whole : whole + _LINE_START]
        part_start = _PART_START.get(self._kind)
        begins_part = part_start is not None and part_start.match(line) is not None
        begins_paragraph = line[:1].isalpha() and _ends_with_blank_line(text[:whole])
        return len(text) if begins_part or begins_paragraph else whole

    def _is_due(self, text: str, end: int) -> bool:
        """Whether to look for the end of the block now; at every line would be quadratic."""
        size = end - self._settled
        if size <= _SMALL or size >= self._parsed * _GROWTH:
            return True
        line_before = text.rfind("\n", 0, max(self._whole - 1, 0)) + 1
        sign = _LINE_BEYOND_LIST if self._kind in (LIST, CODE) else _BLANK_LINE
        return sign.search(text, line_before, end + 1) is not None

    def _parse(self, text: str, end: int, work: Work) -> Taken:
        """Hand on the blocks that have ended and note how far the open one is settled."""
        lines = text[:end]
        blocks = self._outline(lines, work)
        if not blocks:
            return self._drop_definitions(text, end)
        *ended, last = blocks
        final = [text[block.start : block.end] for block in ended]
        if is_final(last, lines):
            return Taken(None, [*final, text[last.start : last.end]], text[last.end :])
        if last.kind == FENCE and not may_become_table(last, lines):
            body = text.index("\n", last.start) + 1
            return Taken(OpenFence(text[last.start : body]), final, text[body:])
        if last.start > 0:
            return Taken(StreamingBlock(text[last.start :], last), final)
        self._settle(last)
        self._parsed = end - self._settled
        return Taken(self)

    def _outline(self, lines: str, work: Work) -> list[MarkdownBlock]:
        """The blocks in ``lines``, parsed from the last item or row on."""
        if not self._settled:
            return outline(lines, work)
        blocks = outline(self._lead + lines[self._settled :], work)
        for block in blocks:
            block.move(self._settled - len(self._lead))
        blocks[0].start = 0
        return blocks

    def _drop_definitions(self, text: str, end: int) -> Taken:
        """Without a block there are only blank lines and link definitions."""
        self._parsed = end
        return Taken(None, rest=text[end:]) if _ends_with_blank_line(text[:end]) else Taken(self)

    def _settle(self, block: MarkdownBlock) -> None:
        self._kind = block.kind
        self._settled = block.last_part - block.start
        self._is_loose = self._is_loose or block.is_loose
        if self._settled and not self._lead:
            self._lead = _make_lead(block, self._text.text)

    def close(self, work: Work) -> list[str]:
        text = self._text.text
        return [text[block.start : block.end] for block in outline(text, work)]

    def html(self, work: Work) -> str:
        text = self._text.text
        if self._settled:
            return self._continue_container(text, work)
        if len(text) <= RENDER_LIMIT and is_plain_paragraph(text):
            return render_markdown(text, work=work)
        if len(text) <= RENDER_LIMIT and _PARAGRAPH_LINE.fullmatch(text):
            return self._shown_paragraph.html(text, work)
        return _render_all(text, work)

    def _continue_container(self, text: str, work: Work) -> str:
        head = self._lead if self._kind == TABLE else ""
        part = text[self._settled :]
        is_long = len(part) > RENDER_LIMIT
        tokens = [] if is_long else parse(mend(head + part), work=work)
        if tokens and KINDS.get(tokens[0].type) != self._kind:
            return _render_all(text, work)
        self._shown_parts.extend(
            text[: self._settled], head=head, is_loose=self._is_loose, work=work
        )
        shown = self._shown_parts.html(tokens, work)
        return shown + (show_as_written(part) if is_long else "")


def _make_lead(block: MarkdownBlock, text: str) -> str:
    """What makes the parser take a list's item, or a table's row, for a later one.

    The item's text is indented by five, so that no item after it can be part of it.
    """
    if block.kind == LIST:
        return f"{block.markup if block.markup in '-+*' else '1' + block.markup}    a\n"
    delimiters = text.split("\n", 2)[1]
    columns = delimiters.strip().strip("|").count("|") + 1
    return f"|{' |' * columns}\n{delimiters}\n"


def _render_all(text: str, work: Work) -> str:
    if len(text) > RENDER_LIMIT:
        return show_as_written(text)
    return render_source(mend(text), highlight=False, work=work)


def _ends_with_blank_line(lines: str) -> bool:
    return not lines[lines.rfind("\n", 0, max(len(lines) - 1, 0)) + 1 :].strip(" \t\n")
