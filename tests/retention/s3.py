"""A local server that speaks as much of S3 as keeping and fetching a file takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

MISSING = b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    objects: dict[str, bytes]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    @property
    def name(self) -> str:
        return unquote(urlsplit(self.path).path)

    def do_PUT(self) -> None:
        self.server.objects[self.name] = self._body()
        self._answer(200, b"", ETag='"1"')

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        data = self.server.objects.get(self.name)
        if data is None:
            self._answer(404, MISSING)
        else:
            self._answer(200, data, ETag='"1"')

    def do_DELETE(self) -> None:
        self.server.objects.pop(self.name, None)
        self._answer(204, b"")

    def _body(self) -> bytes:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        return (
            _unchunked(data) if "aws-chunked" in self.headers.get("Content-Encoding", "") else data
        )

    def _answer(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Last-Modified", "Sun, 22 Nov 2026 08:00:00 GMT")
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD" and status != 204:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def _unchunked(data: bytes) -> bytes:
    """The content of a body in pieces, each behind its size in hexadecimal."""
    found = b""
    while data:
        head, _, data = data.partition(b"\r\n")
        size = int(head.split(b";")[0], 16)
        if not size:
            break
        found, data = found + data[:size], data[size + 2 :]
    return found


@contextmanager
def serve_s3() -> Iterator[tuple[str, dict[str, bytes]]]:
    """The server's address, and what it has by path (bucket first)."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.objects = {}
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.objects
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
