"""A push service, a browser that is subscribed there, and its service worker.

The decryption follows RFC 8291 and RFC 8292 and was written from their text.
"""

import base64
import http.client
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any
from uuid import uuid4

import jwt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CURVE = ec.SECP256R1()


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _derive(secret: bytes, *, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(hashes.SHA256(), length, salt, info).derive(secret)


@dataclass(frozen=True, slots=True)
class Push:
    """A received push, decrypted, with the sender's claims. ``at`` is on the monotonic clock."""

    content: bytes
    headers: Mapping[str, str]
    claims: Mapping[str, Any]
    size: int
    at: float


@dataclass(slots=True)
class SubscribedBrowser:
    """A browser at the push service. ``on_push`` is called with each push, after the response."""

    endpoint: str
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(CURVE))
    secret: bytes = field(default_factory=lambda: uuid4().bytes)
    pushes: list[Push] = field(default_factory=list)
    on_push: Callable[[Push], None] | None = None

    @property
    def point(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    @property
    def subscription(self) -> dict[str, Any]:
        """Return the subscription in the form that browsers use for JSON."""
        keys = {"p256dh": encode(self.point), "auth": encode(self.secret)}
        return {"endpoint": self.endpoint, "expirationTime": None, "keys": keys}

    def decrypt(self, body: bytes) -> bytes:
        salt, size, length = body[:16], int.from_bytes(body[16:20]), body[20]
        sender, ciphertext = body[21 : 21 + length], body[21 + length :]
        assert len(ciphertext) <= size
        shared = self.key.exchange(
            ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(CURVE, sender)
        )
        info = b"WebPush: info\0" + self.point + sender
        secret = _derive(shared, salt=self.secret, info=info, length=32)
        key = _derive(secret, salt=salt, info=b"Content-Encoding: aes128gcm\0", length=16)
        nonce = _derive(secret, salt=salt, info=b"Content-Encoding: nonce\0", length=12)
        content, _, padding = AESGCM(key).decrypt(nonce, ciphertext, None).rpartition(b"\2")
        assert padding.strip(b"\0") == b""
        return content


def read_claims(authorization: str, *, site: str) -> dict[str, Any]:
    """Return the claims, after a check that the sender has the private key to the given key."""
    scheme, _, given = authorization.partition(" ")
    assert scheme == "vapid"
    parts = dict(part.strip().split("=", 1) for part in given.split(","))
    key = ec.EllipticCurvePublicKey.from_encoded_point(CURVE, decode(parts["k"]))
    claims: dict[str, Any] = jwt.decode(parts["t"], key, algorithms=["ES256"], audience=site)
    return claims | {"k": parts["k"]}


@dataclass(slots=True)
class PushService:
    """A push service that responds with its ``answers`` in order and repeats the last one."""

    url: str = ""
    browsers: dict[str, SubscribedBrowser] = field(default_factory=dict)
    answers: list[int] = field(default_factory=lambda: [201])
    problems: list[str] = field(default_factory=list)

    def make_browser(self) -> SubscribedBrowser:
        path = f"/push/{uuid4()}"
        self.browsers[path] = SubscribedBrowser(f"{self.url}{path}")
        return self.browsers[path]

    def take(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any]:
        browser = self.browsers[path]
        assert headers["content-encoding"] == "aes128gcm"
        push = Push(
            content=browser.decrypt(body),
            headers=headers,
            claims=read_claims(headers["authorization"], site=self.url),
            size=len(body),
            at=monotonic(),
        )
        browser.pushes.append(push)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        is_taken = answer < 300 and browser.on_push is not None
        return answer, (lambda: browser.on_push and browser.on_push(push)) if is_taken else None


@contextmanager
def open_push_service() -> Iterator[PushService]:
    service = PushService()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                status, then = service.take(self.path, headers, body)
            except Exception as error:
                service.problems.append(repr(error))
                status, then = 400, None
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            if then is not None:
                threading.Thread(target=then).start()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        service.url = f"http://127.0.0.1:{server.server_port}"
        yield service
        server.shutdown()
        thread.join()


class Worker:
    """A service worker over HTTP.

    When it is woken, it requests the waiting notices, shows them and confirms them. ``again`` holds
    notices that it received again after their confirmation. ``csrf`` is the token of the last page.
    """

    def __init__(self, *, port: int, cookie: str) -> None:
        self.shown: list[dict[str, Any]] = []
        self.again: list[str] = []
        self.csrf = ""
        self._confirmed: set[str] = set()
        self.at: dict[str, float] = {}
        self.statuses: list[int] = []
        self._port, self._cookie = port, cookie
        self._lock = threading.Lock()

    def tell(self, _: Push | None = None) -> None:
        with self._lock:
            for _ in range(100):
                try:
                    self._ask()
                except (OSError, http.client.HTTPException):  # the server is just starting
                    threading.Event().wait(0.1)
                else:
                    return

    def _ask(self) -> None:
        status, given = self.request("GET", "/account/notifications/waiting/")
        self.statuses.append(status)
        if status != 200:
            return
        known = {one["id"] for one in self.shown}
        self.again += [one["id"] for one in given["new"] if one["id"] in self._confirmed]
        for notice in given["new"]:
            if notice["id"] not in known:  # a notice silently replaces one with the same tag
                self.shown.append(notice)
                self.at[notice["id"]] = monotonic()
        if given["new"]:
            ids = [notice["id"] for notice in given["new"]]
            url = "/account/notifications/shown/"
            status, _ = self.request("POST", url, {"notices": ids}, csrf=given["csrf"])
            self._confirmed |= set(ids) if status == 200 else set()

    def request(
        self,
        method: str,
        path: str,
        body: str | dict[str, Any] = "",
        *,
        csrf: str = "",
        kind: str = "application/json",
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        headers = {"Cookie": self._cookie, "Content-Type": kind, "X-CSRFToken": csrf}
        try:
            text = body if isinstance(body, str) else json.dumps(body)
            connection.request(method, path, text, headers)
            response = connection.getresponse()
            data = response.read()
            if cookies := response.headers.get_all("Set-Cookie"):
                self._keep(cookies)
            if found := re.search(rb'name="csrfmiddlewaretoken" value="([^"]+)"', data):
                self.csrf = found[1].decode()
            if response.status == 302:
                return 302, response.headers["Location"]
            is_json = response.headers.get_content_type() == "application/json"
            return response.status, json.loads(data) if is_json else data
        finally:
            connection.close()

    def _keep(self, cookies: list[str]) -> None:
        known = dict(one.split("=", 1) for one in self._cookie.split("; ") if one)
        known |= dict(one.partition(";")[0].split("=", 1) for one in cookies)
        self._cookie = "; ".join(f"{name}={value}" for name, value in known.items())
