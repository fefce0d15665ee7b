"""A real HTTP server that receives webhooks and keeps the requests."""

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Received:
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def message(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    def is_signed_with(self, secret: str) -> bool:
        """Check the signature, by code written from the Standard Webhooks specification."""
        kind, _, encoded = secret.partition("_")
        assert kind == "whsec"
        signed = b".".join(
            (
                self.headers["webhook-id"].encode(),
                self.headers["webhook-timestamp"].encode(),
                self.body,
            )
        )
        digest = hmac.digest(base64.b64decode(encoded), signed, hashlib.sha256)
        expected = "v1," + base64.b64encode(digest).decode()
        return expected in self.headers["webhook-signature"].split(" ")


@dataclass(slots=True)
class Receiver:
    """A receiver of webhooks.

    It responds with ``answers`` in order and repeats the last one. An answer is a status, with or
    without headers. Requests wait until ``answering`` is set.
    """

    url: str = ""
    received: list[Received] = field(default_factory=list)
    answers: list[int | tuple[int, dict[str, str]]] = field(default_factory=lambda: [204])
    answering: threading.Event = field(default_factory=threading.Event)

    def next_answer(self) -> tuple[int, dict[str, str]]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer if isinstance(answer, tuple) else (answer, {})

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [one.message for one in self.received]


@contextmanager
def open_receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.answering.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Received(self.path, headers, body))
            receiver.answering.wait(20)
            status, answered = receiver.next_answer()
            self.send_response(status)
            for name, value in ({"Content-Length": "0"} | answered).items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
        yield receiver
        server.shutdown()
        thread.join()
