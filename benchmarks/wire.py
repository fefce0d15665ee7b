"""The provider's stand-in, with a record of what left it and when.

As a process of its own it prints its address and then answers each line on its
standard input with one line of JSON: the answers sent since the last time.
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
    """``at`` is the monotonic clock in nanoseconds when it was handed to the socket."""

    at: int
    text: str


@dataclass(slots=True, kw_only=True)
class SentAnswer:
    """What was sent in answer to a message that held ``#mark#`` (the last one, where
    there are several). ``arrived``: when the request had."""

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
    """A stream writer that notes what is written; it is parsed when it is asked for."""

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
    """The wire server; ``answers`` holds what was sent, in the order of requests."""

    answers: list[SentAnswer] = field(default_factory=list)

    async def _post_message(self, request: HttpRequest, connection: Connection) -> None:
        arrived = int(connection.exchange.started * 1e9)
        answer = SentAnswer(mark=find_mark(connection.exchange.body), arrived=arrived)
        self.answers.append(answer)
        recording: Any = _RecordingWriter(connection.writer, answer.writes)
        connection.writer = recording
        # The two-argument form: a dataclass with slots is a class made anew.
        await WireServer._post_message(self, request, connection)


def find_mark(body: dict[str, Any]) -> str:
    """The last mark in the person's last message."""
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
