"""The base class for writing an answer in a protocol's form, whole or as a stream of events.

:class:`AnswerWriter` determines the parts of an answer that the client does not have yet. A
subclass for each protocol writes them.
"""

from collections.abc import Iterator
from typing import Any, ClassVar
from uuid import UUID

from django.http import HttpResponse

from conversations.domain.stream import Block
from conversations.models import Run

from .client_request import ClientRequest
from .runs import RunAnswer


def list_blocks(answer: RunAnswer) -> list[Block]:
    """Return the texts, and the tool calls that the client must execute.

    Calls of the workspace's tools are left out; they are in the session."""
    client_call_ids = {call.call_id for call in answer.calls}
    return [
        block
        for block in answer.blocks
        if block.get("type") == "text" or block.get("id") in client_call_ids
    ]


class AnswerWriter:
    """A writer that streams texts as they arrive, and the rest when the answer is complete.

    ``id`` is the id of the answer; a run that waits for tool results gives several answers. If
    not ``is_live``, the whole answer is written when it is complete."""

    prefix: ClassVar[str]

    def __init__(
        self, *, run: Run, after_turn: int, client_request: ClientRequest, is_live: bool = True
    ) -> None:
        self.run = run
        self.client_request = client_request
        self._is_live = is_live
        self.id = f"{self.prefix}{run.uuid.hex}" + (f"_{after_turn}" if after_turn else "")
        # The run of the last frames. Only the first frame of each part names it.
        self._last_run: UUID | None = None
        self._part: int | None = None
        self._text_so_far = ""
        self._texts: list[str] = []
        self._is_open = False

    # Methods that each protocol implements.

    def make_document(self, answer: RunAnswer) -> dict[str, Any]:
        raise NotImplementedError

    def make_error(self, status: int, message: str) -> HttpResponse:
        raise NotImplementedError

    def begin(self) -> Iterator[str]:
        raise NotImplementedError

    def ping(self) -> str:
        raise NotImplementedError

    def begin_text(self) -> Iterator[str]:
        raise NotImplementedError

    def write_text(self, text: str) -> str:
        raise NotImplementedError

    def end_text(self, text: str) -> Iterator[str]:
        raise NotImplementedError

    def write_call(self, call: Block) -> Iterator[str]:
        raise NotImplementedError

    def end(self, answer: RunAnswer) -> Iterator[str]:
        raise NotImplementedError

    def fail(self, status: int, message: str) -> Iterator[str]:
        raise NotImplementedError

    # Writing only what the client does not have yet.

    def add_draft(self, frame: dict[str, Any]) -> Iterator[str]:
        """Yield the new text of a draft frame of this run.

        White space at the beginning of a text is held back until other text follows, because a
        text of only white space is not a block of the answer."""
        part, offset, text = frame["part"], frame["offset"], frame["text"]
        if "run" in frame:
            self._last_run = UUID(frame["run"])
        if self._last_run != self.run.uuid or not self._is_live:
            return
        if part != self._part:
            if offset:
                return  # its beginning was missed, so it is written when the answer is complete
            yield from self._end_text()
            self._part, self._text_so_far = part, ""
        seen = len(self._text_so_far)
        if not offset <= seen < offset + len(text):
            return
        self._text_so_far += text[seen - offset :]
        if not self._is_open and self._text_so_far.strip():
            yield from self._begin_text()
        if self._is_open:
            yield self._add_text(self._text_so_far[len(self._texts[-1]) :])

    def finish(self, answer: RunAnswer) -> Iterator[str]:
        """Yield all parts of the answer that were not written yet, and the end."""
        blocks = list_blocks(answer)
        texts = [str(block.get("text", "")) for block in blocks]
        # A streamed text that turned out to be thinking is not in the answer.
        written = [
            written_text
            for written_text in self._texts
            if any(text.startswith(written_text) for text in texts)
        ]
        if written[-1:] != self._texts[-1:]:
            yield from self._end_text()
        unwritten = []
        for block in blocks:
            text = str(block.get("text", ""))
            if block["type"] != "text" or not written or not text.startswith(written[0]):
                unwritten.append(block)
                continue
            begun = written.pop(0)
            if not written and self._is_open and text != begun:
                yield self._add_text(text[len(begun) :])
        for block in unwritten:
            yield from self._end_text()
            if block["type"] == "text":
                yield from self._begin_text()
                yield self._add_text(str(block.get("text", "")))
            else:
                yield from self.write_call(block)
        yield from self._end_text()
        yield from self.end(answer)

    def _begin_text(self) -> Iterator[str]:
        self._texts.append("")
        self._is_open = True
        yield from self.begin_text()

    def _add_text(self, text: str) -> str:
        self._texts[-1] += text
        return self.write_text(text)

    def _end_text(self) -> Iterator[str]:
        if self._is_open:
            self._is_open = False
            yield from self.end_text(self._texts[-1])
