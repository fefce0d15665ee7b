"""The Markdown dialect of the transcript, and the rendering of its tokens as HTML.

The dialect is CommonMark with tables, strikethrough, task lists, alerts, footnotes, formulas and
bare web addresses. It has no raw HTML except ``<br>``. Rendering differs from the usual one because
the author of the text is a model, which may have been told what to write. An image becomes a
labelled link, because fetching it would already report to its server. A link shows its destination.
Addresses and formulas are the only parts of the text that become attributes.

A block does not depend on the text after it, so that an answer can be shown while it is written. A
footnote is therefore shown where it is written, with its own label. A formula on lines of its own
ends with its closing delimiter or a blank line, whatever follows.
"""

import re
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

from django.utils.safestring import mark_safe
from markdown_it import MarkdownIt, helpers
from markdown_it.parser_inline import ParserInline
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.autolink import autolink
from markdown_it.rules_inline.state_inline import Scanned
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from conversations.domain.messages import say

from .code_blocks import MAX_CODE_CHARS, render_code_block
from .formulas import (
    CHARS_OF_TEX_IN_A_STEP,
    CLOSING,
    STEPS_OF_FORMULA,
    Formula,
    find_formula,
    render_formula,
)
from .messages import mark
from .sanitiser import (
    MAX_ADDRESS_CHARS,
    TABLE,
    URL,
    describe_destination,
    normalise_url,
    sanitise,
    trim_url,
    web_host,
)
from .source_text import escape_attribute, escape_text, without_marks

# Limits on the work of rendering one text, as counts and not as times.

# Steps for one text. A step is one try of the parser's rules at one place, one token, or 200
# characters of HTML. Slower operations count as several steps. A step takes 2 to 6 µs of CPU time,
# so a text takes at most about 0.35 s. 100,000 characters of ordinary text take 15,000 to 30,000
# steps.
MAX_STEPS = 60_000

# For the blocks that one frame of a streaming text completes: at most about 30 ms. They are
# rendered on the event loop, which serves no other request meanwhile.
MAX_FRAME_STEPS, MAX_FRAME_CODE_CHARS = 5_000, 3_000
STEPS_FOR_CHAR = 20  # Steps that each character of a streaming text adds, up to MAX_FRAME_STEPS.

# Steps for the block that is being written, which is rendered again in every frame.
MAX_OPEN_STEPS = 1_500

# For spelling an address as browsers do, which reads it character by character. An address that is
# not ASCII becomes up to CHARS_OF_A_SIGN times as long.
STEPS_OF_ADDRESS, CHARS_OF_ADDRESS_IN_A_STEP, CHARS_OF_A_SIGN = 12, 40, 12
STEPS_OF_CODE_BLOCK, STEPS_OF_COLOURS, CHARS_OF_COLOURS_IN_A_STEP = 10, 20, 4


class TooMuchWork(Exception):
    """The work budget is used up."""


@dataclass(slots=True)
class WorkBudget:
    """The rest of a budget for rendering; ``spend`` raises TooMuchWork when it is used up."""

    left: int = MAX_STEPS
    code_chars: int = MAX_CODE_CHARS
    # The code of a text counts by the square of its length, summed over the blocks. A hundred
    # blocks of a tenth of the maximum length use it up.
    code_squares: int = field(init=False)

    def __post_init__(self) -> None:
        self.code_squares = self.code_chars**2

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooMuchWork

    def spend_on_address(self, url: str) -> None:
        size = len(url) if url.isascii() else CHARS_OF_A_SIGN * len(url)
        self.spend(STEPS_OF_ADDRESS + size // CHARS_OF_ADDRESS_IN_A_STEP)

    def spend_on_code(self, chars: int) -> bool:
        """Count a code block of that length, and return whether it may be coloured."""
        if chars**2 > self.code_squares:
            self.spend(STEPS_OF_CODE_BLOCK)
            return False
        self.code_squares -= chars**2
        self.spend(STEPS_OF_COLOURS + chars // CHARS_OF_COLOURS_IN_A_STEP)
        return True

    def refill(self, chars: int) -> None:
        """Add the steps for the next frame of a stream, which brings ``chars`` characters."""
        self.left = min(MAX_FRAME_STEPS, max(self.left, 0) + STEPS_FOR_CHAR * chars)
        self.code_squares = self.code_chars**2


# Just below the parser's own limit, beyond which it drops the text without notice.
_MAX_BLOCK_LEVEL = 18
_LINK_IN_ANGLES = re.compile(r"<(?:https?:|mailto:|[^\s<>:@]+@)", re.IGNORECASE)
# Chinese, Japanese and Korean, with their punctuation.
WITHOUT_SPACES = re.compile(
    "[\u1100-\u11ff\u2e80-\u2fff\u3001-\ua4cf\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef"
    "\U00020000-\U0003ffff]"
)
_LINE_BREAK = re.compile(r"<br *+/?+> *+", re.IGNORECASE)
_NO_SPACE = re.compile(r"[^\x00-\x20]*+")
_CHECKBOXES = {True: "☑ ", False: "☐ "}
_MAX_TITLE_CHARS = 200
CHARS_OF_HTML_IN_A_STEP = 200


class CountedTokens(list[Token]):
    """A list that counts the tokens appended to it.

    A table makes cells that are not in the text, and each star of a run is a token."""

    def __init__(self, work: WorkBudget) -> None:
        super().__init__()
        self._work = work

    def append(self, token: Token) -> None:
        self._work.spend(1)
        super().append(token)


class TranscriptInlines(StateInline):
    """Inline state with emphasis rules for text without spaces between words.

    In such text a mark of emphasis may stand between a letter and a punctuation mark, as in
    ``**注意：**请看``. CommonMark would treat it as text. The rule is the one of
    https://github.com/tats-u/markdown-cjk-friendly"""

    def scanDelims(self, start: int, canSplitWord: bool) -> Scanned:
        scanned = super().scanDelims(start, canSplitWord)
        end = start + scanned.length
        before = self.src[start - 1 : start] or " "
        after = self.src[end] if end < self.posMax else " "
        if not canSplitWord or not (WITHOUT_SPACES.match(before) or WITHOUT_SPACES.match(after)):
            return scanned
        can_open = scanned.can_open or not after.isspace()
        return Scanned(can_open, scanned.can_close or not before.isspace(), scanned.length)


class CountedInlines(ParserInline):
    def parse(self, src: str, md: MarkdownIt, env: EnvType, tokens: list[Token]) -> list[Token]:
        state = TranscriptInlines(src, md, env, CountedTokens(env["work"]))
        self.tokenize(state)
        for rule in self.ruler2.getRules(""):
            rule(state)
        tokens += state.tokens
        return tokens

    def skipToken(self, state: StateInline) -> None:
        """Count a skipped token: for each ``[``, the parser looks ahead to the paragraph's end."""
        state.env["work"].spend(1)
        super().skipToken(state)


class CountedHelpers:
    """The parser's link helpers, which count their work.

    The parser reads an address character by character, and again after each of up to 32 opening
    parentheses before it."""

    parseLinkLabel = staticmethod(helpers.parseLinkLabel)
    parseLinkTitle = staticmethod(helpers.parseLinkTitle)

    @staticmethod
    def parseLinkDestination(source: str, start: int, end: int) -> Any:
        match = _NO_SPACE.match(source, start, end)
        _WORK.get().spend(len(match[0]) // CHARS_OF_ADDRESS_IN_A_STEP if match else 0)
        return helpers.parseLinkDestination(source, start, end)


class TranscriptMarkdown(MarkdownIt):
    """The parser, which accepts any address; a later rule decides which ones become links."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.inline = CountedInlines()
        self.helpers = cast(Any, CountedHelpers)

    def validateLink(self, url: str) -> bool:
        return True

    def normalizeLink(self, url: str) -> str:
        _WORK.get().spend_on_address(url)
        return normalise_url(url)

    def normalizeLinkText(self, url: str) -> str:
        _WORK.get().spend_on_address(url)
        # The decoded form of a "%" sequence may be any character, also one used for marks.
        shown = url if len(url) > MAX_ADDRESS_CHARS else super().normalizeLinkText(url)
        return without_marks(shown)


# Budget of the text that is being parsed, for calls to which the parser does not pass ``env``.
_WORK: ContextVar[WorkBudget] = ContextVar("work")


COPY_CSV, COPY_MARKDOWN = mark(say("Copy as CSV")), mark(say("Copy as Markdown"))
IMAGE = mark(say("image"))
ALERT_TITLES = {
    "Note": mark(say("Note")),
    "Tip": mark(say("Tip")),
    "Important": mark(say("Important")),
    "Warning": mark(say("Warning")),
    "Caution": mark(say("Caution")),
}

# The buttons come first, so that a growing table adds HTML only at the end, before closing tags.
TABLE_START = (
    '<p class="table-acts rich">'
    f'<button type="button" data-action="copy-csv">{COPY_CSV}</button>'
    f'<button type="button" data-action="copy-table">{COPY_MARKDOWN}</button></p>'
    f'<div class="table-wrap" tabindex="0" role="group" aria-label="{TABLE}" dir="auto"><table>\n'
)
TABLE_END = "</table></div>\n"


class TranscriptRenderer(RendererHTML):
    """HTML for the tokens that the transcript shows in its own way."""

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        highlight = env["highlight"] and env["work"].spend_on_code(len(token.content))
        return render_code_block(token.content, info=token.info, highlight=highlight)

    def code_block(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        env["work"].spend(STEPS_OF_CODE_BLOCK)
        return render_code_block(tokens[idx].content)

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Render an image as a link, or as text if it is in a link or has no web address."""
        token = tokens[idx]
        alt = " ".join(self.renderInlineAsText(token.children, options, env).split())
        url = str(token.attrs["src"])
        host = web_host(url)
        label = f"{IMAGE}: {escape_text(alt)}" if alt else IMAGE
        if host is not None:
            label = f"{label} ({escape_text(host)})"
        if host is None or token.meta:
            return f'<span class="img-blocked">{label}</span>'
        href, title = escape_attribute(url), escape_attribute(host)
        return f'<a class="img-blocked" href="{href}" title="{title}">{label}</a>'

    def table_open(self, *_: Any) -> str:
        return TABLE_START

    def table_close(self, *_: Any) -> str:
        return TABLE_END

    def formula(self, tokens: Sequence[Token], idx: int, _: Any, env: EnvType) -> str:
        token = tokens[idx]
        env["work"].spend(STEPS_OF_FORMULA + len(token.content) // CHARS_OF_TEX_IN_A_STEP)
        formula = Formula(token.content, token.info, token.markup, 0)
        return render_formula(formula, block=token.block)

    def alert_open(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        return f'<div class="alert rich" data-kind="{tokens[idx].info.lower()}" dir="auto">\n'

    def alert_title_open(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        # The parser writes the title in English, and an English title says nothing about the
        # direction of the text.
        title = tokens[idx + 1]
        title.children = []
        return f'<p class="alert-title"><bdi>{ALERT_TITLES[title.content]}</bdi>'

    def note_open(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        label = escape_text(tokens[idx].info)
        return (
            f'<div class="note rich" data-note="{label}" dir="auto">'
            f'<bdi class="note-label">{label}</bdi>\n'
        )

    def note_ref(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        label = escape_text(tokens[idx].content)
        name = mark(say("Footnote %(label)s", label=mark_safe(label)))
        return (
            f'<sup class="rich"><button type="button" data-action="note" data-note="{label}"'
            f' aria-label="{name}">{label}</button></sup>'
        )

    def td_open(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        # The parser passes the alignment of a cell as a style.
        tag = tokens[idx].tag
        alignment = str(tokens[idx].attrs.get("style", "")).removeprefix("text-align:")
        return f'<{tag} class="ta-{alignment}">' if alignment else f"<{tag}>"

    th_open = td_open

    def turned_open(self, tokens: Sequence[Token], idx: int, *rest: Any) -> str:
        """Render an element whose marks are on the side where its text begins.

        The first element in another block takes part in that block's direction, which text in an
        element with ``dir`` would not do."""
        if tokens[idx - 1].nesting < 1 and tokens[idx - 1].type != "alert_title_close":
            tokens[idx].attrSet("dir", "auto")
        return self.renderToken(tokens, idx, *rest)

    bullet_list_open = ordered_list_open = blockquote_open = turned_open

    def list_item_open(self, tokens: Sequence[Token], idx: int, *rest: Any) -> str:
        checkbox = _CHECKBOXES[tokens[idx].meta["checked"]] if tokens[idx].meta else ""
        return self.renderToken(tokens, idx, *rest) + checkbox


def limit_depth(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Block rule: from ``_MAX_BLOCK_LEVEL`` on, treat everything as one paragraph.

    The rule also counts the tries, because the parser tries it first wherever it tries others."""
    state.env["work"].spend(2)
    if silent or state.level < _MAX_BLOCK_LEVEL:
        return False
    state.line = end_line
    text = state.getLines(start_line, end_line, state.blkIndent, False).strip()
    push_paragraph(state, text, [start_line, end_line])
    return True


def formula_block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Block rule: a formula on lines of its own.

    If text follows its closing delimiter, its lines are a paragraph. If a blank line comes before
    the delimiter, it is shown as source."""
    start = state.bMarks[start_line] + state.tShift[start_line]
    end = state.eMarks[start_line]
    opening = state.src[start : start + 2]
    closing = CLOSING.get(opening)
    if closing is None or state.is_code_block(start_line):
        return False
    after_opening = state.src[start + 2 : end].partition(closing)
    if after_opening[1] and after_opening[2].strip():
        return False
    if silent and state.parentType == "table":
        return True  # A formula in a table cell ends with the cell.
    if silent:
        # The line continues a formula that the paragraph has begun.
        before = state.src[state.bMarks[state.line] : start]
        state.env["work"].spend(len(before) // CHARS_OF_HTML_IN_A_STEP)
        return opening != "$$" or before.count("$$") % 2 == 0
    next_line = start_line + 1
    is_closed = bool(after_opening[1])
    tail = ""
    while next_line < end_line and not is_closed and not state.isEmpty(next_line):
        if state.sCount[next_line] < state.blkIndent:
            break
        line = state.src[
            state.bMarks[next_line] + state.tShift[next_line] : state.eMarks[next_line]
        ]
        _, closing_found, tail = line.partition(closing)
        is_closed = bool(closing_found)
        next_line += 1
    state.line = next_line
    text = state.getLines(start_line, next_line, state.blkIndent, False).strip()
    if tail.strip() and is_closed:
        push_paragraph(state, text, [start_line, next_line])
        return True
    token = state.push("formula", "math", 0)
    token.map, token.block, token.info = [start_line, next_line], True, opening
    token.markup = closing if is_closed else ""
    token.content = text.removeprefix(opening).removesuffix(token.markup)
    return True


def push_paragraph(state: StateBlock, text: str, lines: list[int]) -> None:
    state.push("paragraph_open", "p", 1).map = lines
    inline = state.push("inline", "", 0)
    inline.content, inline.map, inline.children = text, lines, []
    state.push("paragraph_close", "p", -1)


def formula_inline(state: StateInline, silent: bool) -> bool:
    """Inline rule: a formula within a line."""
    if state.src[state.pos] not in "$\\":
        return False
    formula = find_formula(state.src, state.pos, state.posMax)
    if formula is None:
        return False
    state.env["work"].spend(len(formula.tex) // CHARS_OF_TEX_IN_A_STEP)
    if not silent:
        token = state.push("formula", "math", 0)
        token.content, token.info, token.markup = formula.tex, formula.opening, formula.closing
    state.pos = formula.end
    return True


# The label excludes ``[^a-z]`` and ``[^x]``, which are sets of characters.
NOTE_LABEL = r"\[\^(\d{1,4}|[A-Za-z]\w{2,31}(?:-\w{2,31}){0,3})\]"
_NOTE_REF = re.compile(NOTE_LABEL)
_NOTE = re.compile(rf"{NOTE_LABEL}:[ \t]*")
_NOTE_INDENT = 4


def note_block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Block rule: a footnote and the indented blocks that continue it."""
    start = state.bMarks[start_line] + state.tShift[start_line]
    match = _NOTE.match(state.src, start, state.eMarks[start_line])
    if match is None or state.is_code_block(start_line):
        return False
    if silent:
        return True
    token = state.push("note_open", "div", 1)
    lines = [start_line, 0]
    token.info, token.block, token.map = match[1], True, lines
    parent, state.parentType = state.parentType, "note"
    saved = state.bMarks[start_line], state.tShift[start_line], state.sCount[start_line]
    state.blkIndent += _NOTE_INDENT
    state.bMarks[start_line], state.tShift[start_line] = match.end(), 0
    state.sCount[start_line] = state.blkIndent
    state.md.block.tokenize(state, start_line, end_line)
    state.bMarks[start_line], state.tShift[start_line], state.sCount[start_line] = saved
    state.blkIndent -= _NOTE_INDENT
    state.parentType = parent
    lines[1] = state.line
    state.push("note_close", "div", -1)
    return True


def note_ref(state: StateInline, silent: bool) -> bool:
    """Inline rule: ``[^label]``, whether or not such a footnote exists."""
    match = _NOTE_REF.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        state.push("note_ref", "sup", 0).content = match[1]
    state.pos = match.end()
    return True


def count_step(state: StateInline, silent: bool) -> bool:
    """Inline rule: count a step. The parser tries it first wherever it tries others."""
    state.env["work"].spend(1)
    return False


def count_tokens(state: StateCore) -> None:
    """Core rule: replace the list of tokens by one that counts. It runs first."""
    state.tokens = CountedTokens(state.env["work"])


def link_in_angles(state: StateInline, silent: bool) -> bool:
    """Inline rule: <address>, except for code such as <std::string>."""
    return _LINK_IN_ANGLES.match(state.src, state.pos) is not None and autolink(state, silent)


def line_break(state: StateInline, silent: bool) -> bool:
    """Inline rule: ``<br>``, the only way to break a line in a table's cell."""
    match = _LINE_BREAK.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        state.push("hardbreak", "br", 0)
    state.pos = match.end()
    return True


def bare_url(state: StateInline, silent: bool) -> bool:
    """Inline rule: an address without marks, found at its ``://``.

    An address contains no characters that other rules need to see, so looking ahead (``silent``)
    can skip this rule."""
    if silent or state.linkLevel or not state.src.startswith("://", state.pos):
        return False
    start = state.pos - (4 if state.src[state.pos - 1] in "pP" else 5)
    match = URL.match(state.src, start, state.posMax) if start >= 0 else None
    if match is None:
        return False
    url = trim_url(match[0])
    href = state.md.normalizeLink(url)
    scheme = state.src[start : state.pos]
    if web_host(href) is None or not state.pending.endswith(scheme):
        return False
    state.pending = state.pending[: -len(scheme)]
    state.push("link_open", "a", 1).attrs = {"href": href}
    state.push("text", "", 0).content = url
    state.push("link_close", "a", -1)
    state.pos = start + len(url)
    return True


def finish_inlines(state: StateCore) -> None:
    """Core rule: decide about links and put checkboxes before their text."""
    for index, token in enumerate(state.tokens):
        if token.type == "inline":
            _finish_links(token.children or [])
        elif token.type == "list_item_open" and token.meta:
            inline = state.tokens[index + 2]
            if inline.type == "inline" and inline.children is not None:
                checkbox = Token("text", "", 0, content=_CHECKBOXES[token.meta["checked"]])
                inline.children.insert(0, checkbox)
                token.meta = {}


def _finish_links(children: list[Token]) -> None:
    """Name each link's destination; remove nested links and links without a known destination."""
    opened: list[Token] = []
    for token in children:
        if token.type == "link_open":
            href = str(token.attrs["href"])
            destination = describe_destination(href)
            if opened:
                token.hidden = True
            elif destination is None:
                token.tag = "span"
                token.attrs = {"class": "link-blocked", "title": href[:_MAX_TITLE_CHARS]}
            else:
                token.attrs = {"href": href, "title": destination[:_MAX_TITLE_CHARS]}
            opened.append(token)
        elif token.type == "link_close":
            opener = opened.pop()
            token.tag, token.hidden = opener.tag, opener.hidden
        elif token.type == "image" and opened:
            token.meta["nested"] = True


_PARSER = TranscriptMarkdown(
    "commonmark",
    {"html": False, "tasklists": True, "alerts": True, "xhtmlOut": False},
    renderer_cls=TranscriptRenderer,
)
_PARSER.enable(["table", "strikethrough"]).disable(["html_block", "html_inline"])
_PARSER.block.ruler.before(
    "table", "limit_depth", limit_depth, {"alt": ["paragraph", "reference", "blockquote", "list"]}
)
_PARSER.block.ruler.before(
    "fence", "formula", formula_block, {"alt": ["paragraph", "reference", "blockquote", "list"]}
)
_PARSER.block.ruler.before("reference", "note", note_block, {"alt": ["paragraph", "reference"]})
_PARSER.inline.ruler.before("escape", "formula", formula_inline)
_PARSER.inline.ruler.before("link", "note_ref", note_ref)
_PARSER.inline.ruler.at("autolink", link_in_angles)
_PARSER.inline.ruler.before("autolink", "line_break", line_break)
_PARSER.inline.ruler.before("newline", "bare_url", bare_url)
_PARSER.inline.ruler.before("text", "count_step", count_step)
_PARSER.core.ruler.before("normalize", "count_tokens", count_tokens)
_PARSER.core.ruler.push("finish_inlines", finish_inlines)
# The first use compiles the rules, which is not safe in several threads at once.
_PARSER.parse("-", {"work": WorkBudget()})


def parse(source: str, *, work: WorkBudget) -> list[Token]:
    """Parse normalised text into tokens for ``render_tokens``; may raise TooMuchWork."""
    _WORK.set(work)
    return _PARSER.parse(source, {"work": work})


def parse_inline(text: str, *, work: WorkBudget) -> list[Token]:
    """Parse part of a paragraph's text, like ``parse``."""
    _WORK.set(work)
    return _PARSER.parseInline(text, {"work": work})


def parse_blocks(source: str, *, work: WorkBudget) -> list[Token]:
    """Parse normalised text into block tokens only; paragraphs keep their raw text."""
    tokens = CountedTokens(work)
    _WORK.set(work)
    _PARSER.block.parse(source, _PARSER, {"work": work}, tokens)
    return tokens


def render_tokens(tokens: Sequence[Token], *, highlight: bool, work: WorkBudget) -> str:
    """Render tokens as sanitised HTML."""
    env = {"highlight": highlight, "work": work}
    html: str = _PARSER.renderer.render(tokens, _PARSER.options, env)
    work.spend(len(html) // CHARS_OF_HTML_IN_A_STEP)
    return sanitise(html)
