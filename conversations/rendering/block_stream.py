"""An answer as HTML while it is being written, block by block.

A top-level block of Markdown (a paragraph, list, table, code block) depends on
nothing around it, so it can be rendered for good as soon as the text behind it
shows that it has ended. What is left is one open block, which is rendered again
and again, mended. Two things keep that cheap however long the block gets: a list
or table is parsed and rendered from its last item or row on, and inside a code
fence nothing is looked for but the line that closes it.

Link reference definitions are the exception to independence: they reach back.
The full render at the end knows them, and ``is_exact`` says whether it differs.
"""

from .markdown import TOO_MUCH_WORK, render_markdown, show_as_written
from .open_block import OpenPlain, OpenText, Pieces, StreamingBlock
from .source_text import normalise_source
from .work import MAX_FRAME_CODE_CHARS, MAX_FRAME_STEPS, MAX_OPEN_STEPS, TooMuchWork, Work


class BlockStream:
    """The HTML of one text that arrives in pieces.

    ``blocks`` holds the HTML of the blocks that are final; it only ever grows.
    """

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self._source = Pieces()
        self._holds_return = False
        self._open: OpenText = StreamingBlock()
        self._open_html: str | None = ""
        self._is_too_much = False
        self._work = Work(MAX_FRAME_STEPS, MAX_FRAME_CODE_CHARS)
        self._full_html: str | None = None

    @property
    def source(self) -> str:
        """The whole text so far, as it was fed."""
        return self._source.text

    def feed(self, delta: str) -> list[str]:
        """Take more text; return the HTML of the blocks that are final because of it."""
        if self._full_html is not None:
            raise RuntimeError("The stream is finished.")
        self._source.append(delta)
        self._work.refill(len(delta))
        return self._take(self._normalise(delta))

    def open_html(self) -> str:
        """The HTML of the block that is being written, as if it ended here."""
        if self._open_html is None:
            self._open_html = self._show_open()
        return self._open_html

    def _show_open(self) -> str:
        if not self._is_too_much:
            try:
                return self._open.html(Work(MAX_OPEN_STEPS, MAX_FRAME_CODE_CHARS))
            except TooMuchWork:
                # Trying again in every frame would be work that shows nothing.
                self._is_too_much = True
        return TOO_MUCH_WORK + show_as_written(self._open.source)

    def finish(self) -> str:
        """End the text: the open block becomes final. Returns the full render."""
        if self._full_html is None:
            self._take("\n" if self._holds_return else "")
            self._work = Work()
            self._render_blocks(self._close())
            self._open, self._open_html = StreamingBlock(), ""
            self._full_html = render_markdown(self.source)
        return self._full_html

    def is_exact(self) -> bool:
        """Whether the blocks together are the full render. Finishes the stream."""
        return self.finish() == "".join(self.blocks)

    def _normalise(self, delta: str) -> str:
        """The normalised piece; a carriage return at its end waits for what follows."""
        text = "\r" + delta if self._holds_return else delta
        self._holds_return = text.endswith("\r")
        return normalise_source(text.removesuffix("\r"))

    def _take(self, text: str) -> list[str]:
        known = len(self.blocks)
        if text:
            self._open_html = None
        while text:
            try:
                taken = self._open.take(text, self._work)
            except TooMuchWork:
                self._open = OpenPlain(self._open.source)
                break
            if taken.next is not self._open:
                self._is_too_much = False
            self._open, text = taken.next or StreamingBlock(), taken.rest
            self._render_blocks(taken.final)
        return self.blocks[known:]

    def _close(self) -> list[str]:
        try:
            return self._open.close(self._work)
        except TooMuchWork:
            return [self._open.source]

    def _render_blocks(self, sources: list[str]) -> None:
        self.blocks += (render_markdown(source, work=self._work) for source in sources)
