"""The addresses that requests come from, and the addresses of this server."""

from collections.abc import Mapping
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest
from django.http.request import split_domain_port, validate_host
from django.utils.http import url_has_allowed_host_and_scheme

IPV6_CUSTOMER_BITS = 64  # bits of an IPv6 address that identify a customer's network


def client_address(request: HttpRequest) -> str | None:
    """Return the address of the client, as the audit log records it."""
    return address_of(
        request.META.get("REMOTE_ADDR", ""), request.headers.get("X-Forwarded-For", "")
    )


def counted_address(request: HttpRequest) -> str | None:
    """Return the address by which attempts to sign in are counted.

    For IPv6 this is the address of the network, because one customer has all its addresses and
    could use another one each time.
    """
    address = client_address(request)
    ip = ip_address(address) if address else None
    if not isinstance(ip, IPv6Address):
        return address
    if ip.ipv4_mapped:
        return str(ip.ipv4_mapped)
    return str(IPv6Network((ip, IPV6_CUSTOMER_BITS), strict=False).network_address)


def address_of(peer: str, forwarded: str) -> str | None:
    """Return the address of the client, or None if the text is not an address.

    This is the ``peer`` of the connection. Behind a proxy it is the last forwarded address, which
    the proxy has added; the client can forge those before it.
    """
    address = peer
    if settings.LOOM.behind_tls_proxy:
        address = forwarded.rpartition(",")[2].strip() or peer
    try:
        return str(ip_address(address.partition("%")[0]))
    except ValueError:
        return None


def site_of(request: HttpRequest) -> str:
    """Return the base URL of this server as the request reached it, for links in messages."""
    return request.build_absolute_uri("/").rstrip("/")


def page_before(request: HttpRequest, *, otherwise: str) -> str:
    """Return the address of the page that contained the form, if it is on this server."""
    came_from = request.headers.get("Referer", "")
    is_ours = url_has_allowed_host_and_scheme(
        came_from, {request.get_host()}, require_https=request.is_secure()
    )
    return came_from if is_ours else otherwise


def query_of(values: Mapping[str, Any]) -> str:
    """Return a query string of the values that are not empty."""
    return urlencode({name: value for name, value in values.items() if value})


# Sockets are accepted only from this server's own pages.


def origin_is_ours(scope: dict[str, Any]) -> bool:
    """Return whether the handshake's Origin is this server or a trusted origin."""
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
    """Saves in the scope whether the handshake comes from this server's own pages."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await self.application(scope | {"origin_is_ours": origin_is_ours(scope)}, receive, send)
