"""From where somebody comes."""

from ipaddress import ip_address

from django.conf import settings
from django.http import HttpRequest


def client_address(request: HttpRequest) -> str | None:
    """The address that attempts to sign in are counted by, and that the audit log has."""
    return address_of(
        request.META.get("REMOTE_ADDR", ""), request.headers.get("X-Forwarded-For", "")
    )


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
