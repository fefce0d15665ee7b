"""A code fence that is still being written."""

import re

from .code_blocks import CODE_BLOCK_END, find_language, open_code_block
from .open_text import Pieces, Taken
from .outline import closing_fence
from .source_text import escape_text
from .work import Work

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
