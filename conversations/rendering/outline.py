"""The top-level blocks of a Markdown text, and whether more text can change them."""

import re
from dataclasses import dataclass
from functools import lru_cache

from markdown_it.token import Token

from .markdown_parser import parse_blocks
from .work import Work

LIST, TABLE, FENCE, CODE = "list", "table", "fence", "code_block"

KINDS = {"bullet_list_open": LIST, "ordered_list_open": LIST, "table_open": TABLE}
_PARTS = {(LIST, "list_item_open", 1), (TABLE, "tr_open", 2)}
"""What long blocks consist of: the token type of their parts, and its level."""


@dataclass(slots=True, kw_only=True)
class MarkdownBlock:
    """A top-level block, from offset ``start`` to ``end`` of a text.

    ``last_part`` is where the last item of a list, or row of a table, starts. A list
    ``is_loose`` if its items hold paragraphs. ``markup`` is what opened a fence.
    """

    kind: str
    start: int
    end: int
    last_part: int
    markup: str
    is_loose: bool = False

    def move(self, distance: int) -> None:
        """Say the same about a text that has ``distance`` more characters before it."""
        self.start += distance
        self.end += distance
        self.last_part += distance


def outline(source: str, work: Work) -> list[MarkdownBlock]:
    """The top-level blocks of normalised text, in order."""
    offsets = [0, *(newline.end() for newline in re.finditer("\n", source)), len(source)]
    blocks: list[MarkdownBlock] = []
    for token in parse_blocks(source, work=work):
        if token.level == 0 and token.map:
            blocks.append(_begin_block(token, offsets))
        elif blocks:
            _note_part(blocks[-1], token, offsets)
    return blocks


def _begin_block(token: Token, offsets: list[int]) -> MarkdownBlock:
    first, behind = token.map or (0, 0)
    return MarkdownBlock(
        kind=KINDS.get(token.type, token.type),
        start=offsets[first],
        end=offsets[behind],
        last_part=offsets[first],
        markup=token.markup,
    )


def _note_part(block: MarkdownBlock, token: Token, offsets: list[int]) -> None:
    if (block.kind, token.type, token.level) in _PARTS and token.map:
        block.last_part = offsets[token.map[0]]
    elif block.kind == LIST and token.level == 2 and token.type == "paragraph_open":
        block.is_loose = block.is_loose or not token.hidden


def is_final(block: MarkdownBlock, source: str) -> bool:
    """Whether text after ``source``, whose lines are whole, leaves its last block as it is.

    A list or indented code goes on after blank lines. A fence ends with its closing
    line, a heading or rule with its own, unless that may yet become the header of a
    table. All others have ended if a line follows.
    """
    if block.kind in (LIST, CODE):
        return False
    if block.kind == FENCE:
        lines = source[block.start : block.end].removesuffix("\n").rpartition("\n")
        return bool(lines[1]) and closing_fence(block.markup).fullmatch(lines[2]) is not None
    if block.kind in ("heading_open", "hr") and not may_become_table(block, source):
        return True
    return block.end < len(source)


def may_become_table(block: MarkdownBlock, source: str) -> bool:
    """Whether the next line may show that the last block's only line heads a table."""
    return block.end == len(source) and "|" in source[block.start :]


@lru_cache(maxsize=64)
def closing_fence(markup: str) -> re.Pattern[str]:
    """The line that closes a fence opened by ``markup``: as many of the marks, or more."""
    mark = re.escape(markup[0])
    return re.compile(rf"^ {{0,3}}{mark}{{{len(markup)},}}[ \t]*$", re.MULTILINE)
