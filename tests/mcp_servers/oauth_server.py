"""The SDK's server behind an authorization server of its own, at one address.

``python oauth_server.py`` prints its port. A browser that is sent to ``/authorize`` is signed in
at once. A refresh token can be used only once.

Environment variables change its behaviour:

- ``ISSUER``: The metadata has this issuer instead of the server's own URL.
- ``NESTED`` (``register`` or ``token``): The response of this endpoint is nested a level too deep.
- ``JSON``: Calls are answered with JSON, when they end.
- ``GATE``: Requests without this header are refused.
- ``CALLS``: Only calls need a sign-in.

More endpoints control it: ``/forget`` makes all tokens invalid, or with ``?clients`` all clients
unknown. After ``/fail?STATUS``, refreshes fail with this status. ``/log`` returns the requests.
"""

import base64
import hashlib
import os
import secrets
import socket
from typing import Any
from urllib.parse import urlencode

import uvicorn
from sdk_server import server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

listener = socket.create_server(("127.0.0.1", int(os.environ.get("PORT", "0"))))
BASE = f"http://127.0.0.1:{listener.getsockname()[1]}"

GATE = os.environ.get("GATE")

log: list[str] = []
challenges: dict[str, str] = {}
valid: set[str] = set()
refreshing: set[str] = set()
used: set[str] = set()
clients: set[str] = set()
failing: list[int] = []


async def describe_resource(_: Request) -> Response:
    return JSONResponse({"resource": f"{BASE}/mcp", "authorization_servers": [BASE]})


async def describe(_: Request) -> Response:
    return JSONResponse(
        {
            "issuer": os.environ.get("ISSUER", BASE),
            "authorization_endpoint": f"{BASE}/authorize",
            "token_endpoint": f"{BASE}/token",
            "registration_endpoint": f"{BASE}/register",
            "revocation_endpoint": f"{BASE}/revoke",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "scopes_supported": ["beds"],
        }
    )


def give(what: dict[str, Any], where: str, *, status_code: int = 200) -> Response:
    if os.environ.get("NESTED") == where:
        what = {"given": what | {"secret": "not-to-be-seen"}}
    return JSONResponse(what, status_code=status_code)


async def register(request: Request) -> Response:
    log.append("register")
    client = {"client_id": secrets.token_hex(4), "client_secret": "secret"}
    clients.add(client["client_id"])
    how = {"token_endpoint_auth_method": "client_secret_basic"}
    return give({**await request.json(), **client, **how}, "register", status_code=201)


def knows_client(request: Request) -> bool:
    """Return whether the client signs in by the one method that clients are told to use."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    name, _, secret = base64.b64decode(given).decode().partition(":")
    return kind == "Basic" and name in clients and secret == "secret"


async def authorize(request: Request) -> Response:
    query = request.query_params
    if query["client_id"] not in clients:
        return Response("An unknown client.", status_code=400)
    log.append(f"authorize {query['resource']}")
    code = secrets.token_urlsafe()
    challenges[code] = query["code_challenge"]
    answer = {"code": code, "state": query["state"], "iss": BASE}
    return RedirectResponse(f"{query['redirect_uri']}?{urlencode(answer)}", status_code=302)


async def token(request: Request) -> Response:
    form = await request.form()
    log.append(str(form["grant_type"]))
    if form["grant_type"] == "authorization_code":
        digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        is_right = challenges.pop(str(form["code"]), "") == challenge
    elif form["grant_type"] == "client_credentials":
        is_right = request.headers["authorization"].startswith("Basic ")
    elif failing:
        return JSONResponse({"error": "not_now"}, status_code=failing[-1])
    else:
        given = str(form["refresh_token"])
        if given in used:  # the token was stolen, so the whole grant becomes invalid
            valid.clear()
            refreshing.clear()
        is_right = given in refreshing
        refreshing.discard(given)
        used.add(given)
    if not is_right:
        return JSONResponse({"error": "invalid_grant"}, status_code=400)
    access, refresh = secrets.token_urlsafe(), secrets.token_urlsafe()
    valid.clear()
    valid.add(access)
    refreshing.add(refresh)
    tokens = {"access_token": access, "refresh_token": refresh}
    return give(tokens | {"token_type": "Bearer", "expires_in": 3600}, "token")


async def revoke(request: Request) -> Response:
    form = await request.form()
    if not knows_client(request):
        return JSONResponse({"error": "invalid_client"}, status_code=401)
    log.append("revoke")
    refreshing.discard(str(form["token"]))
    return Response()


async def forget(request: Request) -> Response:
    if "clients" in request.query_params:
        clients.clear()
    else:
        valid.clear()
        refreshing.clear()
    return Response()


async def fail(request: Request) -> Response:
    failing[:] = map(int, request.query_params)
    return Response()


async def show_log(_: Request) -> Response:
    return JSONResponse(log)


class Protected:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers, path = dict(scope.get("headers", ())), scope.get("path", "")
        is_closed = GATE is not None and GATE.encode() not in headers
        if is_closed and path.startswith(("/mcp", "/.well-known")):
            await Response(status_code=403)(scope, receive, send)
            return
        if path.startswith("/mcp"):
            first = await receive()
            is_open = "CALLS" in os.environ and b'"tools/call"' not in first.get("body", b"")
            given = headers.get(b"authorization", b"").decode().removeprefix("Bearer ")
            if given not in valid and not is_open:
                where = f"{BASE}/.well-known/oauth-protected-resource/mcp"
                refused = {"WWW-Authenticate": f'Bearer resource_metadata="{where}"'}
                await Response(status_code=401, headers=refused)(scope, receive, send)
                return
            given_back = [first]
            await self.app(scope, lambda: again(given_back, receive), send)
            return
        await self.app(scope, receive, send)


async def again(first: list[Any], receive: Any) -> Any:
    return first.pop() if first else await receive()


inner = server.streamable_http_app(json_response="JSON" in os.environ)
app = Starlette(
    routes=[
        Route("/.well-known/oauth-protected-resource/mcp", describe_resource),
        Route("/.well-known/oauth-authorization-server", describe),
        Route("/register", register, methods=["POST"]),
        Route("/authorize", authorize),
        Route("/token", token, methods=["POST"]),
        Route("/revoke", revoke, methods=["POST"]),
        Route("/forget", forget),
        Route("/fail", fail),
        Route("/log", show_log),
        Mount("/", app=inner),
    ],
    lifespan=lambda _: inner.router.lifespan_context(inner),
)
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(Protected(app), log_level="error")).run(sockets=[listener])
