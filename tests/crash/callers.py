"""Programs that send messages under keys while the server is killed, and their answers."""

import http.client
import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any
from urllib.parse import quote

MARK = re.compile(r"(?:k\d+)-c\d+-n\d+")

AGAIN_SECONDS = 0.25
PATIENCE = 120.0
"""Seconds for which a caller retries one request."""

BROKEN = (OSError, http.client.HTTPException)
FINAL = ("completed", "stopped", "failed", "interrupted")


@dataclass(slots=True, kw_only=True)
class Asked:
    """A message and its answer, or the bytes of its stream."""

    mark: str
    key: str
    text: str
    run: dict[str, Any] = field(default_factory=dict)
    answer: str = ""
    stream: bytes = b""
    tries: int = 0

    @property
    def said(self) -> str:
        """Return all text that the caller was shown."""
        return self.answer + self.stream.decode()

    @property
    def strange(self) -> set[str]:
        """Return the marks of other keys in that text."""
        return {mark for mark in MARK.findall(self.said) if mark.split("-")[0] != self.key}


@dataclass(slots=True, kw_only=True)
class Place:
    """A server's port, and the token and workspace for calls to it."""

    port: int
    token: str
    workspace: str


class Caller:
    """A program that sends one message after the other under one key.

    By turns it waits for an answer and streams an answer. It reconnects to a stream after every
    few events.
    """

    def __init__(
        self, place: Place, *, key: str, name: str, every: int, streams_first: bool
    ) -> None:
        self.asked: list[Asked] = []
        self.problems: list[str] = []
        self._place, self._key, self._name, self._every = place, key, name, every
        self._streams_first = streams_first

    def live(self, goes_on: Callable[[int], bool]) -> None:
        """Send messages while ``goes_on``, called with the number of messages, is true."""
        while goes_on(len(self.asked)):
            mark = f"{self._key}-{self._name}-n{len(self.asked)}"
            words = json.dumps(f"Answer to {mark}: " + "bean " * random.randrange(5, 60))
            text = f"[[wire: text={words} chunk=7 rate=150]] {mark}"
            asked = Asked(mark=mark, key=self._key, text=text)
            self.asked.append(asked)
            try:
                if (len(self.asked) + self._streams_first) % 2:
                    self._wait(asked)
                else:
                    self._stream(asked)
            except Exception as error:
                self.problems.append(f"{mark}: {error!r}")

    def _wait(self, asked: Asked) -> None:
        while True:
            response, asked.answer = self._try(asked, self._messages(asked) + "?wait=20", asked)
            asked.run = json.loads(asked.answer)
            if response == 200 and asked.run["state"] in FINAL:
                return

    def _stream(self, asked: Asked) -> None:
        """Read the stream in the response to the message first, then the run's stream."""
        url, last = "", ""
        while last != "end":
            method, path = ("GET", url) if url else ("POST", self._messages(asked))
            for block in self._read_some(asked, method, path, last):
                asked.stream += block + b"\n\n"
                event = read_event(block)
                last = event["id"]
                if event["event"] == "run":
                    asked.run = event["data"]
                    url = stream_of(asked.run)

    def _read_some(self, asked: Asked, method: str, path: str, last: str) -> Iterator[bytes]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
        try:
            with closing(self._connect()) as connection:
                self._send(connection, method, path, asked, headers)
                response = connection.getresponse()
                if response.status != 200:
                    raise ValueError(f"{method} {path} was answered by {response.status}")
                for count, block in enumerate(read_blocks(response), 1):
                    yield block
                    if count == self._every:
                        return
        except BROKEN:
            asked.tries += 1
            sleep(AGAIN_SECONDS)

    def _messages(self, asked: Asked) -> str:
        path = f"/api/v1/workspaces/{self._place.workspace}/keys/{quote('soak:' + asked.key)}"
        _, body = self._try(asked, path, None, method="PUT")
        return f"/api/v1/sessions/{json.loads(body)['uuid']}/messages"

    def _try(
        self, asked: Asked, path: str, message: Asked | None, *, method: str = "POST"
    ) -> tuple[int, str]:
        """Send a request, and retry while the server is down or the queue is full."""
        end = monotonic() + PATIENCE
        while monotonic() < end:
            asked.tries += 1
            try:
                with closing(self._connect()) as connection:
                    self._send(connection, method, path, message, {})
                    response = connection.getresponse()
                    body = response.read().decode()
            except BROKEN:
                sleep(AGAIN_SECONDS)
                continue
            if response.status in (200, 201, 202):
                return response.status, body
            if json.loads(body)["code"] != "queue_full":
                raise ValueError(f"{method} {path} was answered by {response.status}: {body}")
            sleep(AGAIN_SECONDS)
        raise TimeoutError(f"{method} {path} was not answered")

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        message: Asked | None,
        headers: dict[str, str],
    ) -> None:
        body = None
        headers = headers | {"Authorization": f"Bearer {self._place.token}"}
        if message is not None and method == "POST":
            body = json.dumps({"text": message.text})
            headers |= {"Content-Type": "application/json", "Idempotency-Key": message.mark}
        connection.request(method, path, body=body, headers=headers)

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._place.port, timeout=60)


def stream_of(run: dict[str, Any]) -> str:
    return f"/api/v1/sessions/{run['session']}/runs/{run['run']}/stream"


def read_blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the events of a stream without its comments."""
    lines: list[bytes] = []
    while line := response.readline():
        if line == b"\n":
            if lines:
                yield b"".join(lines).removesuffix(b"\n")
            lines = []
        elif not line.startswith(b":"):
            lines.append(line)


def read_event(block: bytes) -> dict[str, Any]:
    fields = dict(line.split(": ", 1) for line in block.decode().split("\n"))
    return fields | {"data": json.loads(fields["data"])}


def read_stream(place: Place, path: str, *, every: int = 10**9) -> bytes:
    """Read a stream to its end. Reconnect after ``every`` events."""
    found, last = b"", ""
    while last != "end":
        connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=60)
        with closing(connection):
            headers = {"Authorization": f"Bearer {place.token}"}
            connection.request(
                "GET", path, headers=headers | ({"Last-Event-ID": last} if last else {})
            )
            for count, block in enumerate(read_blocks(connection.getresponse()), 1):
                found += block + b"\n\n"
                last = read_event(block)["id"]
                if count == every:
                    break
    return found
