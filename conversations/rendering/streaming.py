"""Rendering of an answer as HTML while it is being written, block by block.

A top-level block of Markdown (a paragraph, list, table or code block) depends on nothing around it.
It is rendered once and for all as soon as the text after it shows that it has ended. Only one open
block is left. It is rendered again and again, with its open markup closed (see
``close_open_markup``). Two rules keep that cheap however long the block gets. A list or table is
parsed and rendered from its last item or row on. Inside a code fence, only the closing line is
looked for.

Link reference definitions are the exception, because they affect earlier blocks. The row that
replaces the stream is a full render, which includes them.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from markdown_it.rules_block.table import escapedSplit
from markdown_it.token import Token

from .code_blocks import CODE_BLOCK_END, MAX_INFO_CHARS, open_code_block
from .formulas import CLOSING, MAX_TEX_CHARS, find_formula
from .markdown import (
    TOO_MUCH_WORK,
    is_plain_paragraph,
    render_markdown,
    render_source,
    show_as_written,
)
from .markdown_parser import (
    MAX_FRAME_CODE_CHARS,
    MAX_FRAME_STEPS,
    MAX_OPEN_STEPS,
    NOTE_LABEL,
    TABLE_END,
    WITHOUT_SPACES,
    TooMuchWork,
    WorkBudget,
    parse,
    parse_blocks,
    parse_inline,
    render_tokens,
)
from .source_text import MARK_END, escape_text, normalise_source

# Closing the open markup of Markdown that is cut off anywhere.
MAX_INLINE_CHARS = 4_000  # The markup of a longer paragraph is not closed.

_LINE_START_MARKS = r"^[ \t>]*+(?:(?:[-+*]|\d{1,9}[.)])[ \t]++)*+"
_FENCE = re.compile(_LINE_START_MARKS + r"(`{3,}+|~{3,}+)([^\n]*+)", re.MULTILINE)
_FORMULA_LINE = re.compile(_LINE_START_MARKS + r"(\$\$|\\\[)", re.MULTILINE)
_LONE_MARKERS = re.compile(
    r"[ \t>]*+(?:\d{1,9}+[.)]?[ \t]*+)?"
    r"(?:[-+*_=#|:`~> \t]*+|\$\$?|\\\[?|\[!\w*+\]?|\[\^[\w-]*+\]?)"
)
_HALF_CLOSING_FENCE = re.compile(r"[ \t>]*+(?:`+|~+)")
_HALF_CHECKBOX = re.compile(r"\[[ xX]?\]?[ \t]*")
_TABLE_ROW = re.compile(r" {0,3}\|")
_RUN_START = re.compile(
    r"^[ \t>]*+(?:\n|(?:(?:[-+*]|\d{1,9}[.)])[ \t]++)++|#{1,6}[ \t]++|(?=\|))", re.MULTILINE
)
_MARK = re.compile(
    rf"\\.?|\$\$?|{NOTE_LABEL}|\[\^[\w-]*\Z"
    r"|`+|\*+|_+|~~+|!?\[|\]\(?|<br *+/?+>|<(?:br? *+/?+)?\Z"
    r"|<[A-Za-z][^\s<>]*+(?!>)|https?://[^\s*<>\[\]`]*+",
    re.DOTALL,
)
_BACKTICKS = re.compile("`+")
_WORDS = re.compile(r"(?<![\\\w])[^\W\d_]{3,}\s+[^\W\d_]{3,}")
_WHOLE_TARGET = re.compile(
    r"\s*+(?:<[^<>\n]*>|[^\s()<>]*+(?:\([^\s()]*\)[^\s()]*+)*+)"
    r"(?:\s++(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))?\s*+\)"
)
_HALF_TARGET = re.compile(r"\s*+(?:<[^<>\n]*+|[^\s<>]*+(?:\s++(?:[\"'(][^\"'()]*+)?)?)\Z")


# Stands for the number of replaced characters if the whole HTML is replaced.
ALL = -1


@dataclass(slots=True)
class _OpenEmphasis:
    """Open emphasis: the number of its marks and where they start."""

    mark: str
    length: int
    start: int


def close_open_markup(source: str) -> str:
    """Return Markdown with its open end changed so that it renders as if the text were complete.

    Half-open markup is closed. Markup whose meaning is still open is hidden: a lone ``-`` may
    become a list, a rule or a heading. The guess need not be right, because the next one replaces
    it. It must not make the page jump, and it must be cheap."""
    cut = source.rfind("\n") + 1
    before, last_line = source[:cut], source[cut:]
    opening = ""
    for fence in _FENCE.finditer(source):
        if not opening and fence.end() < len(source) and _opens_fence(fence):
            opening = fence[1]
        elif opening and fence[1].startswith(opening) and not fence[2].strip(" \t"):
            opening = ""
    if opening:
        return before if _HALF_CLOSING_FENCE.fullmatch(last_line) else source
    if _LONE_MARKERS.fullmatch(last_line) or _opens_fence(_FENCE.match(last_line)):
        source = before
    # Marks pair up within the last paragraph, item, heading or cell, after a formula on its own
    # lines.
    start = max((match.end() for match in _RUN_START.finditer(source)), default=0)
    for formula in _FORMULA_LINE.finditer(source):
        end = source.find(CLOSING[formula[1]], formula.end())
        blank_line = source.find("\n\n", formula.end(), end if end >= 0 else len(source))
        if blank_line >= 0:
            continue
        if end < 0:
            return source  # The formula is shown as source until it is closed.
        start = max(start, end + 2)
    if source.startswith("|", start):
        start = source.rfind("|") + 1
    source = source[:start] + close_open_inline(source[start:])[0]
    lines = source.rstrip("\n").rsplit("\n", 2)
    if not _TABLE_ROW.match(lines[-1]) or (len(lines) > 1 and _TABLE_ROW.match(lines[-2])):
        return source
    # Show a table's header as a table before the delimiter row has arrived.
    cells = escapedSplit(lines[-1].strip())
    columns = len(cells) - (not cells[0]) - (len(cells) > 1 and not cells[-1])
    return "\n".join([*lines, "|" + "---|" * columns]) if columns else source


def _opens_fence(fence: re.Match[str] | None) -> bool:
    return fence is not None and not (fence[1][0] == "`" and "`" in fence[2])


def close_open_inline(text: str) -> tuple[str, int]:
    """Close the open markup of a paragraph's text, and return up to where it is complete.

    Before that offset, which follows a space, all marks are closed and the text is unchanged, so it
    need not be read again."""
    if len(text) > MAX_INLINE_CHARS:
        return text, 0
    text = text.rstrip()
    if _HALF_CHECKBOX.fullmatch(text):
        return "", 0
    closer = _InlineCloser(text)
    return closer.close(), closer.completed


class _InlineCloser:
    """One pass over the text of a paragraph, which keeps track of open marks."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.completed = 0
        self.emphasis: list[_OpenEmphasis] = []
        self.open_marks: Counter[str] = Counter()
        self.brackets: list[int] = []
        self.is_cut = False

    def close(self) -> str:
        position = 0
        is_over = False
        while not is_over:
            match = _MARK.search(self.text, position)
            end = match.start() if match else len(self.text)
            # The text up to this mark has no marks, and none is open.
            if not (self.emphasis or self.brackets or self.is_cut):
                self.completed = max(self.completed, self.text.rfind(" ", position, end) + 1)
            is_over = match is None
            position = self._handle(match) if match else end
        # A half link is shown as its label, and empty emphasis is not shown.
        for start in reversed(self.brackets):
            opening = 2 if self.text.startswith("!", start) else 1
            self.text = self.text[:start] + self.text[start + opening :]
        while self.emphasis:
            opener = self.emphasis[-1]
            if opener.start + opener.length < len(self.text):
                break
            self.text = self.text[: self.emphasis.pop().start]
        closers = "".join(opener.mark * opener.length for opener in reversed(self.emphasis))
        return self.text.rstrip() + closers

    def _handle(self, match: re.Match[str]) -> int:
        """Record one mark, or change the text if the mark is incomplete; return where to go on.

        Addresses are matched too, so that the characters in them do not count as marks."""
        match match[0][0]:
            case "$" | "\\" if formula := find_formula(self.text, match.start()):
                return formula.end
            case "$":
                return self._handle_dollar(match)
            case "\\" if len(match[0]) == 1:
                self._change(self.text[: match.start()])
            case "\\" if match[0] in ("\\(", "\\["):
                return self._show_source(match)
            case "[" if match[0].startswith("[^"):
                if not match[0].endswith("]"):
                    self._change(self.text[: match.start()])
                return match.end()
            case "`":
                return self._handle_backticks(match)
            case "<" if match.end() == len(self.text) and match[0][-1] != ">":
                is_break = "<br/".startswith(match[0].replace(" ", ""))
                closed = self.text + (">" if "://" in match[0] else "")
                self._change(self.text[: match.start()] if is_break else closed)
                return len(self.text)
            case "[" | "!":
                self.brackets.append(match.start())
            case "]":
                return self._handle_closing_bracket(match)
            case "*" | "_" | "~":
                self._handle_emphasis(match)
        return match.end()

    def _handle_dollar(self, match: re.Match[str]) -> int:
        # A dollar may open a formula that is not closed yet, or be a sum of money.
        rest = self.text[match.end() :]
        is_behind_word = match.start() and self.text[match.start() - 1].isalnum()
        if len(rest) > MAX_TEX_CHARS or is_behind_word:
            return match.end()
        if not rest:
            self._change(self.text[: match.start()])
            return len(self.text)
        self.is_cut = True  # The text that follows may change the meaning of the dollar.
        if "`" in rest or rest[0].isspace() or rest[0].isdigit() or _WORDS.search(rest):
            return match.end()
        return self._show_source(match)

    def _show_source(self, match: re.Match[str]) -> int:
        """Show a formula that is not closed yet as it is written."""
        source = self.text[match.start() :]
        ticks = "`" * (max(map(len, _BACKTICKS.findall(source)), default=0) + 1)
        self._change(f"{self.text[: match.start()]}{ticks}{source}{ticks}")
        return len(self.text)

    def _handle_backticks(self, match: re.Match[str]) -> int:
        # A code span is skipped, closed if it is open, and dropped if it is empty.
        length = len(match[0])
        position = match.end()
        for run in _BACKTICKS.finditer(self.text, position):
            if len(run[0]) == length:
                return run.end()
        code = self.text[position:]
        if code:
            closing = "`" * (length - (len(code) - len(code.rstrip("`"))))
            self._change(self.text + closing)
        else:
            self._change(self.text[: match.start()])
        return len(self.text)

    def _handle_closing_bracket(self, match: re.Match[str]) -> int:
        # A whole link is skipped; half a link is cut down to ``[label``.
        if not self.brackets:
            return match.end()
        end = match.end()
        has_target = match[0] == "]("
        target = _WHOLE_TARGET.match(self.text, end) if has_target else None
        if target:
            self.brackets.pop()
            return target.end()
        if end == len(self.text) or (has_target and _HALF_TARGET.match(self.text, end)):
            self._change(self.text[: match.start()])
        else:
            self.brackets.pop()
        return end

    def _handle_emphasis(self, match: re.Match[str]) -> None:
        mark, length = match[0][0], len(match[0])
        before = self.text[match.start() - 1] if match.start() else " "
        after = self.text[match.end()] if match.end() < len(self.text) else " "
        # Close the emphasis that these marks can close, starting with the innermost of its kind.
        while not before.isspace() and length and self.open_marks[mark]:
            while self.emphasis[-1].mark != mark:
                self.open_marks[self.emphasis.pop().mark] -= 1
            closed = min(length, self.emphasis[-1].length)
            length -= closed
            self.emphasis[-1].length -= closed
            if not self.emphasis[-1].length:
                self.emphasis.pop()
                self.open_marks[mark] -= 1
        if not length:
            return
        if match.end() == len(self.text):
            self._change(self.text[:-length])
        elif (
            not after.isspace()
            and (not before.isalnum() or WITHOUT_SPACES.match(before))
            and (mark != "~" or length == 2)
        ):
            self.emphasis.append(_OpenEmphasis(mark, length, match.start()))
            self.open_marks[mark] += 1

    def _change(self, text: str) -> None:
        self.text, self.is_cut = text, True


MAX_RENDERED_CHARS = 8_000  # A longer open part is shown as text, not rendered.
_MAX_LINEWISE_CHARS = 2_000  # A shorter open part is parsed at every line.
_REPARSE_GROWTH = 1.25  # A longer open part is parsed again when it has grown by this factor.
_LINE_START_CHARS = 16  # They tell whether a line begins an item, row or paragraph.
LIST, TABLE, FENCE, CODE = "list", "table", "fence", "code_block"
FORMULA, NOTE = "formula", "note_open"
_KINDS = {"bullet_list_open": LIST, "ordered_list_open": LIST, "table_open": TABLE}

# The parts of a long block: their token type and level.
_PARTS = {LIST: ("list_item_open", 1), TABLE: ("tr_open", 2)}
_BLANK_LINE = re.compile(r"^[ \t]*\n", re.MULTILINE)
_LINE_BEYOND_LIST = re.compile(r"^[ \t]*\n(?=[^\s\-+*0-9])", re.MULTILINE)
_PART_START = {LIST: re.compile(r"(?:[-+*]|\d{1,9}[.)]) {1,4}\w"), TABLE: re.compile(r"\|")}
_PARAGRAPH_LINE = re.compile(r"(?:[^\W\d_]|[\"'(“]|\*\*\w|`[^`\n])[^\n]*")
_OPENING_LINE = re.compile(r"( {0,3})(`{3,}|~{3,})(.*)\n")
_ROWS_START, _ROWS_END = "<tbody>\n", "</tbody>\n"


@dataclass(slots=True, kw_only=True)
class MarkdownBlock:
    """A top-level block, from offset ``start`` to ``end`` of a text.

    ``last_part`` is where the last item of a list, or row of a table, starts. A list ``is_loose``
    if its items hold paragraphs. ``markup`` is that of the block's first token, such as the opening
    marks of a fence."""

    kind: str
    start: int
    end: int
    last_part: int
    markup: str
    is_loose: bool = False


def outline(source: str, work: WorkBudget, *, offset: int) -> list[MarkdownBlock]:
    """Return the top-level blocks of normalised text, in order.

    ``offset`` is the offset of ``source`` in the whole text."""
    ends = [newline.end() for newline in re.finditer("\n", source)]
    offsets = [offset + end for end in (0, *ends, len(source))]
    blocks: list[MarkdownBlock] = []
    for token in parse_blocks(source, work=work):
        if token.level == 0 and token.map:
            start, end = offsets[token.map[0]], offsets[token.map[1]]
            kind = _KINDS.get(token.type, token.type)
            blocks.append(
                MarkdownBlock(kind=kind, start=start, end=end, last_part=start, markup=token.markup)
            )
        elif blocks:
            block = blocks[-1]
            if token.map and _PARTS.get(block.kind) == (token.type, token.level):
                block.last_part = offsets[token.map[0]]
            elif block.kind == LIST and token.level == 2 and token.type == "paragraph_open":
                block.is_loose = block.is_loose or not token.hidden
    return blocks


def is_final(block: MarkdownBlock, source: str) -> bool:
    """Return whether text after ``source``, whose lines are whole, leaves its last block unchanged.

    A list, note or indented code may continue after blank lines. A fence or formula ends with its
    closing line. A heading or rule ends with its own line, unless that line may yet become the
    header of a table. Any other block has ended if a line follows."""
    if block.kind in (LIST, CODE, NOTE):
        return False
    if block.kind == FORMULA and block.markup and not may_become_table(block, source):
        return True
    if block.kind == FENCE:
        lines = source[block.start : block.end].removesuffix("\n").rpartition("\n")
        return bool(lines[1]) and closing_fence(block.markup).fullmatch(lines[2]) is not None
    if block.kind in ("heading_open", "hr") and not may_become_table(block, source):
        return True
    return block.end < len(source)


def may_become_table(block: MarkdownBlock, source: str) -> bool:
    """Return whether the next line may make the last block's only line a table header."""
    return block.end == len(source) and "|" in source[block.start :]


@lru_cache(maxsize=64)
def closing_fence(markup: str) -> re.Pattern[str]:
    """Return a pattern for the line that closes a fence: at least as many marks as ``markup``."""
    mark = re.escape(markup[0])
    return re.compile(rf"^ {{0,3}}{mark}{{{len(markup)},}}[ \t]*$", re.MULTILINE)


class StringBuilder:
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


class FeedResult(NamedTuple):
    """The result of feeding text: ``final`` blocks, and ``rest`` to feed to ``next``.

    If ``next`` is None, no block is open any more."""

    next: "OpenText | None"
    final: Sequence[str] = ()
    rest: str = ""


class OpenText:
    """The open end of a streaming text.

    This class only collects text: no block is looked for until the text ends, because that would
    take too much work. Every method except ``source`` may raise TooMuchWork."""

    def __init__(self, text: str = "") -> None:
        self._text = StringBuilder(text)

    @property
    def source(self) -> str:
        return self._text.text

    def feed(self, text: str, work: WorkBudget) -> FeedResult:
        """Add text and return the result. The text is added even if this raises."""
        self._text.append(text)
        return FeedResult(self)

    def html(self, work: WorkBudget) -> str:
        """Return the HTML of the open text, as if the text ended here."""
        raise TooMuchWork


class OpenFence(OpenText):
    """A code fence whose closing line has not arrived; only that line is looked for.

    The HTML grows with the code and has no colours. ``opening_line`` is a fence to the parser."""

    def __init__(self, opening_line: str) -> None:
        super().__init__(opening_line)
        fence = _OPENING_LINE.fullmatch(opening_line)
        assert fence is not None
        indent, self._marks, info = fence.groups()
        self._indent = re.compile(rf"^ {{1,{len(indent)}}}", re.MULTILINE) if indent else None
        self._html = StringBuilder(open_code_block(info.strip()[:MAX_INFO_CHARS]))
        self._line = StringBuilder()

    @property
    def source(self) -> str:
        return self._text.text + self._line.text

    def feed(self, text: str, work: WorkBudget) -> FeedResult:
        self._line.append(text)
        if "\n" not in text:
            return FeedResult(self)
        text = self._line.text
        lines = text[: text.rindex("\n") + 1]
        closing = closing_fence(self._marks).search(lines)
        if closing:
            end = closing.end() + 1
            return FeedResult(None, [self._text.text + text[:end]], text[end:])
        self._text.append(lines)
        self._html.append(self._escape(lines))
        self._line = StringBuilder(text[len(lines) :])
        return FeedResult(self)

    def html(self, work: WorkBudget) -> str:
        line = self._line.text
        may_close = not line.strip(" ").strip(self._marks[0])
        return self._html.text + ("" if may_close else self._escape(line)) + CODE_BLOCK_END

    def _escape(self, code: str) -> str:
        return escape_text(self._indent.sub("", code) if self._indent else code)


def _split_container(html: str) -> tuple[str, str, str]:
    """Split the HTML of a list or table into its opening, its items or rows, and its closing."""
    if not html.endswith(TABLE_END):
        start = html.index("\n") + 1
        end = html.rindex("</")
    elif _ROWS_START in html:
        start = html.index(_ROWS_START) + len(_ROWS_START)
        end = html.rindex(_ROWS_END)
    else:
        return html.removesuffix(TABLE_END) + _ROWS_START, "", _ROWS_END + TABLE_END
    return html[:start], html[start:end], html[end:]


class StreamingBlock(OpenText):
    """The text after the last final block.

    Once it is known to be a list or table, its first ``_completed`` characters are items that have
    ended, or the table's head and rows that have ended. Only the text after them is parsed again,
    with a ``_lead`` before it that makes the parser take it for a continuation. After the text
    ``"- a\\n- b\\n- c"``, ``_completed`` is 8, and ``"-    a\\n- c"`` is parsed.

    The HTML of the first ``_shown_size`` characters is final: the completed items or rows, or words
    of a paragraph. ``_shown`` holds it, and ``_shown_end`` closes the list or table."""

    def __init__(self, text: str = "", block: MarkdownBlock | None = None) -> None:
        super().__init__(text)
        self._line_start = text.rfind("\n") + 1  # of the last line, which has not ended
        self._parsed = 0
        self._kind = ""
        self._completed = 0
        self._lead = ""
        self._is_loose = False
        self._shown, self._shown_size, self._shown_end = StringBuilder("<p>"), 0, ""
        if block:
            self._complete(block)

    def feed(self, text: str, work: WorkBudget) -> FeedResult:
        is_line_start = self._text.size - self._line_start < _LINE_START_CHARS
        self._text.append(text)
        has_new_line = "\n" in text
        if not has_new_line and not (is_line_start and self._kind in (LIST, TABLE, CODE)):
            return FeedResult(self)
        text = self.source
        whole = text.rfind("\n") + 1
        end = self._find_parsable_end(text, whole)
        # The start of a line can show that the item or row before it has ended.
        is_due = self._is_due(text, end) if has_new_line else self._completed < whole < end
        self._line_start = whole
        return self._parse(text, end, work) if is_due else FeedResult(self)

    def _find_parsable_end(self, text: str, whole: int) -> int:
        """Return the end of the ``whole`` lines, or of the text if its last line can be parsed too.

        That is the case if the line begins an item or a row, or a paragraph after a blank line,
        whatever follows in the line."""
        line = text[whole : whole + _LINE_START_CHARS]
        part_start = _PART_START.get(self._kind)
        begins_part = part_start is not None and part_start.match(line) is not None
        begins_paragraph = line[:1].isalpha() and _ends_with_blank_line(text[:whole])
        return len(text) if begins_part or begins_paragraph else whole

    def _is_due(self, text: str, end: int) -> bool:
        """Return whether to look for the end of the block now.

        Parsing at every line would take quadratic time."""
        size = end - self._completed
        if size <= _MAX_LINEWISE_CHARS or size >= self._parsed * _REPARSE_GROWTH:
            return True
        line_before = text.rfind("\n", 0, max(self._line_start - 1, 0)) + 1
        sign = _LINE_BEYOND_LIST if self._kind in (LIST, CODE) else _BLANK_LINE
        return sign.search(text, line_before, end + 1) is not None

    def _parse(self, text: str, end: int, work: WorkBudget) -> FeedResult:
        """Return the blocks that have ended, and record how far the open one is complete."""
        lines = text[:end]
        source, offset = self._lead + lines[self._completed :], self._completed - len(self._lead)
        blocks = outline(source, work, offset=offset)
        if not blocks:
            # The lines are blank or link definitions.
            self._parsed = end
            if _ends_with_blank_line(lines):
                return FeedResult(None, rest=text[end:])
            return FeedResult(self)
        if self._completed:
            blocks[0].start = 0
        *ended, last = blocks
        final = [text[block.start : block.end] for block in ended]
        if is_final(last, lines):
            return FeedResult(None, [*final, text[last.start : last.end]], text[last.end :])
        if last.kind == FENCE and not may_become_table(last, lines):
            body = text.index("\n", last.start) + 1
            return FeedResult(OpenFence(text[last.start : body]), final, text[body:])
        if last.start > 0:
            return FeedResult(StreamingBlock(text[last.start :], last), final)
        self._complete(last)
        self._parsed = end - self._completed
        return FeedResult(self)

    def _complete(self, block: MarkdownBlock) -> None:
        self._kind = block.kind
        self._completed = block.last_part - block.start
        if block.is_loose and not self._is_loose:
            self._is_loose, self._shown_size = True, 0  # its items so far are shown as loose, too
        if not self._completed or self._lead:
            return
        self._shown_size = 0
        if block.kind == LIST:
            # With its text indented by five, the item of the lead cannot contain the next item.
            mark = block.markup if block.markup in "-+*" else "1" + block.markup
            self._lead = f"{mark}    a\n"
        else:
            delimiters = self.source.split("\n", 2)[1]
            columns = delimiters.strip().strip("|").count("|") + 1
            self._lead = f"|{' |' * columns}\n{delimiters}\n"

    def html(self, work: WorkBudget) -> str:
        text = self.source
        if self._completed:
            return self._continue_container(text, work)
        if len(text) > MAX_RENDERED_CHARS:
            return show_as_written(text)
        if is_plain_paragraph(text):
            return render_markdown(text, work=work)
        if not _PARAGRAPH_LINE.fullmatch(text):
            return _render_all(text, work)
        # In a paragraph of one line, words before the last open mark are not read again.
        rest = text[self._shown_size :]
        closed, completed = close_open_inline(rest)
        if completed:
            self._shown.append(_render_inline(rest[:completed], work))
            self._shown_size += completed
        return (self._shown.text + _render_inline(closed[completed:], work)).rstrip() + "</p>\n"

    def _continue_container(self, text: str, work: WorkBudget) -> str:
        head = self._lead if self._kind == TABLE else ""
        part = text[self._completed :]
        is_long = len(part) > MAX_RENDERED_CHARS
        tokens = [] if is_long else parse(close_open_markup(head + part), work=work)
        if tokens and _KINDS.get(tokens[0].type) != self._kind:
            return _render_all(text, work)
        self._show_completed(text[: self._completed], head, work)
        # The list or table ends with the tokens' first top-level block. Other blocks may follow it.
        closing = (
            i for i, token in enumerate(tokens, 1) if (token.level, token.nesting) == (0, -1)
        )
        end = next(closing, len(tokens))
        html = self._render_parts(tokens[:end], highlight=False, work=work)
        parts = _split_container(html)[1] if html else ""
        after = render_tokens(tokens[end:], highlight=False, work=work) if tokens[end:] else ""
        shown = self._shown.text + parts + self._shown_end + after
        return shown + (show_as_written(part) if is_long else "")

    def _show_completed(self, completed: str, head: str, work: WorkBudget) -> None:
        if self._shown_size == len(completed):
            return
        new = head + completed[self._shown_size :] if self._shown_size else completed
        html = self._render_parts(parse(new, work=work), highlight=True, work=work)
        start, parts, end = _split_container(html)
        if not self._shown_size:
            self._shown, self._shown_end = StringBuilder(start), end
        self._shown.append(parts)
        self._shown_size = len(completed)

    def _render_parts(self, tokens: list[Token], *, highlight: bool, work: WorkBudget) -> str:
        if self._is_loose:
            for token in tokens:
                token.hidden = token.hidden and token.level != 2
        return render_tokens(tokens, highlight=highlight, work=work)


def _render_inline(text: str, work: WorkBudget) -> str:
    return render_tokens(parse_inline(text, work=work), highlight=False, work=work) if text else ""


def _render_all(text: str, work: WorkBudget) -> str:
    if len(text) > MAX_RENDERED_CHARS:
        return show_as_written(text)
    return render_source(close_open_markup(text), highlight=False, work=work)


def _ends_with_blank_line(lines: str) -> bool:
    return not lines[lines.rfind("\n", 0, max(len(lines) - 1, 0)) + 1 :].strip(" \t\n")


def _shared_start(old: str, new: str) -> int:
    """Return the length of the common start, up to a place outside tags and references.

    References are character references such as ``&amp;``."""
    size = min(len(old), len(new))
    # Nearly always, everything except for the closing tags is the same, whatever its length.
    step = 32
    while step < size and not new.startswith(old[: size - step]):
        step *= 8
    start = max(0, size - step)
    pairs = enumerate(zip(old[start:size], new[start:size], strict=True), start)
    length = next((index for index, (old_char, new_char) in pairs if old_char != new_char), size)
    tag = old.rfind("<", 0, length)
    if tag > old.rfind(">", 0, length):
        length = tag
    reference = old.rfind("&", 0, length)
    if reference > old.rfind(";", 0, length):
        length = reference
    return length


class BlockStream:
    """The HTML of one text that arrives in pieces.

    ``blocks`` holds the HTML of the final blocks and only ever grows."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self._holds_return = False
        self._open: OpenText = StreamingBlock()
        self._open_html: str | None = ""
        self._patched_html = ""
        self._is_too_much = False
        self._work = WorkBudget(MAX_FRAME_STEPS, MAX_FRAME_CODE_CHARS)

    def feed(self, delta: str) -> list[str]:
        """Add text, and return the HTML of the blocks that it makes final."""
        self._work.refill(len(delta))
        # A carriage return at the end waits for the next character.
        text = "\r" + delta if self._holds_return else delta
        self._holds_return = text.endswith("\r")
        text = normalise_source(text.removesuffix("\r"))
        final_count = len(self.blocks)
        if text:
            self._open_html = None
        while text:
            try:
                result = self._open.feed(text, self._work)
            except TooMuchWork:
                self._open = OpenText(self._open.source)
                break
            if result.next is not self._open:
                self._is_too_much = False
            self._open, text = result.next or StreamingBlock(), result.rest
            self.blocks += (render_markdown(source, work=self._work) for source in result.final)
        if len(self.blocks) > final_count:
            self._patched_html = ""
        return self.blocks[final_count:]

    def patch(self) -> tuple[int, str]:
        """Return how the open block's HTML has changed since the last call.

        The result is the number of UTF-16 code units to remove from the end of the HTML, and the
        HTML to append there. The number is ``ALL`` if the whole HTML is replaced. A block that is
        new since the last call counts from an empty string."""
        old, new = self._patched_html, self.open_html()
        self._patched_html = new
        shared = _shared_start(old, new)
        if MARK_END in old[shared:]:
            # A page has translated text in the place of a mark, whose length depends on the
            # language.
            return ALL, new
        return len(old[shared:].encode("utf-16-le")) // 2, new[shared:]

    def open_html(self) -> str:
        """Return the HTML of the block that is being written, as if it ended here."""
        if self._open_html is None and not self._is_too_much:
            try:
                self._open_html = self._open.html(WorkBudget(MAX_OPEN_STEPS, MAX_FRAME_CODE_CHARS))
            except TooMuchWork:
                # Trying again in every frame would be wasted work.
                self._is_too_much = True
        if self._open_html is None:
            self._open_html = TOO_MUCH_WORK + show_as_written(self._open.source)
        return self._open_html
