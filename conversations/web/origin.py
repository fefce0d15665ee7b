"""Sockets come from our own pages only.

CSRF tokens do not protect a socket; the Origin header does. It is compared
exactly, port included: another web app on the same machine is another origin,
though cookies make no difference between ports.
"""

from typing import Any

from django.conf import settings
from django.http.request import split_domain_port, validate_host


def origin_is_ours(scope: dict[str, Any]) -> bool:
    """True when the handshake's Origin is the server's own, or a trusted one."""
    headers: dict[bytes, str] = {
        name: value.decode("latin-1") for name, value in scope.get("headers", [])
    }
    origin, host = headers.get(b"origin", ""), headers.get(b"host", "")
    if origin in settings.LOOM.trusted_origins:
        return True
    domain, _ = split_domain_port(host.lower())
    if not domain or not validate_host(domain, settings.ALLOWED_HOSTS):
        return False
    is_secure = scope.get("scheme") == "wss" or (
        settings.LOOM.behind_tls_proxy and headers.get(b"x-forwarded-proto") == "https"
    )
    return origin.lower() == f"{'https' if is_secure else 'http'}://{host.lower()}"


class OriginMiddleware:
    """Notes in the scope whether the handshake comes from our own pages."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await self.application(scope | {"origin_is_ours": origin_is_ours(scope)}, receive, send)
