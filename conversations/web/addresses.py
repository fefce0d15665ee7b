"""From where somebody comes, and where they reach us."""

from collections.abc import Mapping
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest
from django.http.request import split_domain_port, validate_host
from django.utils.http import url_has_allowed_host_and_scheme

IPV6_CUSTOMER_BITS = 64  # of an IPv6 address, those that say whose network it is


def client_address(request: HttpRequest) -> str | None:
    """The address that the audit log has."""
    return address_of(
        request.META.get("REMOTE_ADDR", ""), request.headers.get("X-Forwarded-For", "")
    )


def counted_address(request: HttpRequest) -> str | None:
    """The address that attempts to sign in are counted by. Of IPv6 it is the network: one
    customer has all its addresses, and could come from another one each time."""
    address = client_address(request)
    found = ip_address(address) if address else None
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return str(IPv6Network((found, IPV6_CUSTOMER_BITS), strict=False).network_address)


def address_of(peer: str, forwarded: str) -> str | None:
    """The address of the ``peer`` of a connection; behind a proxy, the one that the proxy
    noted last: what stands before it is anybody's claim. None for what is no address."""
    address = peer
    if settings.LOOM.behind_tls_proxy:
        address = forwarded.rpartition(",")[2].strip() or peer
    try:
        return str(ip_address(address.partition("%")[0]))
    except ValueError:
        return None


def site_of(request: HttpRequest) -> str:
    """Where links of messages lead: this server, as the request reached it."""
    return request.build_absolute_uri("/").rstrip("/")


def page_before(request: HttpRequest, *, otherwise: str) -> str:
    """The page that a form was on, if it is one of ours."""
    came_from = request.headers.get("Referer", "")
    is_ours = url_has_allowed_host_and_scheme(
        came_from, {request.get_host()}, require_https=request.is_secure()
    )
    return came_from if is_ours else otherwise


def query_of(values: Mapping[str, Any]) -> str:
    """A query string of these values; empty ones stay out."""
    return urlencode({name: value for name, value in values.items() if value})


# Sockets come from our own pages only.


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
