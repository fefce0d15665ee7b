"""Any block but a code fence, while it is still being written."""

import re

from .markdown import is_plain_paragraph, render_markdown, render_source, show_as_written
from .markdown_parser import parse
from .mending import mend
from .open_fence import OpenFence
from .open_text import Pieces, Taken
from .outline import (
    CODE,
    FENCE,
    KINDS,
    LIST,
    TABLE,
    MarkdownBlock,
    is_final,
    may_become_table,
    outline,
)
from .shown import ShownParagraph, ShownParts
from .work import Work

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
