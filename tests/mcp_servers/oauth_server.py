"""The SDK's server behind an authorization server of its own, at one address.

``python oauth_server.py`` prints its port. Whoever is sent to ``/authorize`` is signed in at once.
``ISSUER`` is another name than its own; ``NESTED`` (``register``, ``token``): what it gives there
is a level too deep; ``JSON``: it answers calls with JSON, at their end;
A refresh token counts once. ``/forget`` makes all tokens invalid, ``/log`` says what was asked for.
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

log: list[str] = []
challenges: dict[str, str] = {}
valid: set[str] = set()
refreshing: set[str] = set()
used: set[str] = set()


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
    return give({**await request.json(), "client_id": "loom"}, "register", status_code=201)


async def authorize(request: Request) -> Response:
    query = request.query_params
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
    else:
        given = str(form["refresh_token"])
        if given in used:  # somebody has stolen it: nothing of the grant is good any more
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
    log.append("revoke")
    refreshing.discard(str(form["token"]))
    return Response()


async def forget(_: Request) -> Response:
    valid.clear()
    refreshing.clear()
    return Response()


async def show_log(_: Request) -> Response:
    return JSONResponse(log)


class Protected:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/mcp"):
            headers = dict(scope["headers"])
            given = headers.get(b"authorization", b"").decode().removeprefix("Bearer ")
            if given not in valid:
                where = f"{BASE}/.well-known/oauth-protected-resource/mcp"
                refused = {"WWW-Authenticate": f'Bearer resource_metadata="{where}"'}
                await Response(status_code=401, headers=refused)(scope, receive, send)
                return
        await self.app(scope, receive, send)


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
        Route("/log", show_log),
        Mount("/", app=inner),
    ],
    lifespan=lambda _: inner.router.lifespan_context(inner),
)
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(Protected(app), log_level="error")).run(sockets=[listener])
