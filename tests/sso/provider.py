"""A local OpenID Connect provider over HTTP, with real keys, real signatures and strict checks.

It refuses a wrong secret, verifier or redirection and a code that is used twice, as a strict
provider does. A test sets the person who signs in (``person``), and may spoil the answers.
"""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from uuid import uuid4

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

type Claims = dict[str, Any]

SECRET = "a secret of the client"


def make_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def public_jwk(key: rsa.RSAPrivateKey, kid: str) -> Claims:
    shown: Claims = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return shown | {"kid": kid, "use": "sig", "alg": "RS256"}


class Provider:
    """An OpenID Connect provider that signs in ``person`` as soon as a browser arrives.

    ``spoil`` changes the claims of the ID token, ``sign`` makes the token, and ``answers`` replaces
    whole answers by path.
    """

    def __init__(self) -> None:
        self.key = make_key()
        self.stranger = make_key()
        self.reset()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def reset(self) -> None:
        self.person: Claims = {
            "sub": "person-1",
            "preferred_username": "rosa",
            "given_name": "Rosa",
            "family_name": "Field",
            "email": "rosa@example.org",
            "email_verified": True,
        }
        self.spoil: Callable[[Claims], Claims] = lambda claims: claims
        self.sign: Callable[[Claims], str] = self.sign_properly
        self.answers: dict[str, tuple[int, Any]] = {}
        self.codes: dict[str, Claims] = {}
        self.requests: list[tuple[str, Claims]] = []

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def sign_properly(self, claims: Claims) -> str:
        return jwt.encode(claims, self.key, "RS256", headers={"kid": "one"})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(_flat(urlsplit(self.path).query))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(_flat(body.decode()))

            def _answer(self, query: Claims) -> None:
                path = urlsplit(self.path).path
                provider.requests.append((path, query | {"authorization": self._bearer}))
                status, body = provider.answers.get(path) or provider.answer(
                    path, query, bearer=self._bearer
                )
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", body)
                    body = ""
                text = json.dumps(body).encode()
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            @property
            def _bearer(self) -> str:
                return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

    def answer(self, path: str, query: Claims, *, bearer: str) -> tuple[int, Any]:
        pages = {
            "/.well-known/openid-configuration": self._discovery,
            "/authorize": self._authorize,
            "/token": self._token,
            "/keys": lambda _: (200, {"keys": [public_jwk(self.key, "one")]}),
            "/userinfo": lambda _: self._userinfo(bearer),
        }
        page = pages.get(path)
        return page(query) if page else (404, {})

    def _discovery(self, _: Claims) -> tuple[int, Any]:
        return 200, {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        }

    def _authorize(self, query: Claims) -> tuple[int, Any]:
        wanted = {"response_type": "code", "client_id": "loom", "code_challenge_method": "S256"}
        if any(query.get(name) != value for name, value in wanted.items()):
            return 400, {"error": "invalid_request"}
        code = uuid4().hex
        self.codes[code] = query | {"person": self.person}
        back = urlencode({"code": code, "state": query["state"]})
        return 302, f"{query['redirect_uri']}?{back}"

    def _token(self, query: Claims) -> tuple[int, Any]:
        asked = self.codes.pop(str(query.get("code")), None)
        if asked is None or not self._is_rightful(asked, query):
            return 400, {"error": "invalid_grant"}
        access = uuid4().hex
        self.codes[access] = asked
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": "loom",
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            **{key: asked["person"][key] for key in ("sub", "amr") if key in asked["person"]},
        }
        return 200, {
            "access_token": access,
            "token_type": "Bearer",
            "id_token": self.sign(self.spoil(claims)),
        }

    def _is_rightful(self, asked: Claims, query: Claims) -> bool:
        verifier = hashlib.sha256(str(query.get("code_verifier")).encode()).digest()
        return (
            query.get("client_secret") == SECRET
            and query.get("redirect_uri") == asked["redirect_uri"]
            and base64.urlsafe_b64encode(verifier).rstrip(b"=").decode() == asked["code_challenge"]
        )

    def _userinfo(self, access: str) -> tuple[int, Any]:
        asked = self.codes.get(access)
        return (200, asked["person"]) if asked else (401, {})


def _flat(query: str) -> Claims:
    return {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
