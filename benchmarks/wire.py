"""The simulated provider, which records the data that it sends, with times.

As a separate process it prints its URL. It responds to each line on its standard input with one
line of JSON: the answers that it has sent since the last line.
"""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

from tests.wire.connection import Connection, HttpRequest
from tests.wire.request_body import find_last_texts
from tests.wire.server import KEY, WireServer

__all__ = ["KEY", "RecordingWire", "SentAnswer", "SentPiece"]

_MARK = re.compile(r"#([\w-]+)#")
_TEXT_DELTA = re.compile(rb'"text_delta", "text": ("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True, slots=True)
class SentPiece:
    """A piece of text. ``at`` is the time of the write, on the monotonic clock in nanoseconds."""

    at: int
    text: str


@dataclass(slots=True, kw_only=True)
class SentAnswer:
    """The data that was sent as the answer to a message.

    ``mark`` comes from ``#mark#`` in the message (the last one if there are several). ``arrived``
    is the time when the request arrived.
    """

    mark: str
    arrived: int
    writes: list[tuple[int, bytes]] = field(default_factory=list)

    def pieces(self) -> list[SentPiece]:
        """The pieces of the answer's text."""
        return [
            SentPiece(at, json.loads(match))
            for at, data in self.writes
            for match in _TEXT_DELTA.findall(data)
        ]

    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces())


class _RecordingWriter:
    """A stream writer that records the written data. ``SentAnswer.pieces`` parses it."""

    def __init__(self, writer: Any, writes: list[tuple[int, bytes]]) -> None:
        self._writer = writer
        self._writes = writes

    def write(self, data: bytes) -> None:
        self._writes.append((monotonic_ns(), data))
        self._writer.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


@dataclass(slots=True)
class RecordingWire(WireServer):
    """The wire server. ``answers`` holds the sent answers in the order of the requests."""

    answers: list[SentAnswer] = field(default_factory=list)

    async def _post_message(self, request: HttpRequest, connection: Connection) -> None:
        arrived = int(connection.exchange.started * 1e9)
        answer = SentAnswer(mark=find_mark(connection.exchange.body), arrived=arrived)
        self.answers.append(answer)
        recording: Any = _RecordingWriter(connection.writer, answer.writes)
        connection.writer = recording
        # super() without arguments fails, because a dataclass with slots is a new class.
        await WireServer._post_message(self, request, connection)


def find_mark(body: dict[str, Any]) -> str:
    """Return the last mark in the person's last message."""
    marks = _MARK.findall(" ".join(find_last_texts(body)[1]))
    return str(marks[-1]) if marks else ""


def dump_answers(answers: Sequence[SentAnswer]) -> str:
    return json.dumps(
        [
            {
                "mark": answer.mark,
                "arrived": answer.arrived,
                "pieces": [(piece.at, piece.text) for piece in answer.pieces()],
            }
            for answer in answers
        ]
    )


async def _serve() -> None:
    server = RecordingWire()
    print(await server.start(), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        taken, server.answers = server.answers, []
        print(await asyncio.to_thread(dump_answers, taken), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve())
