"""Which addresses of the web may be asked for, and which may be connected to.

One rule for webhooks and for what the model fetches. Where a name leads is judged on the very
connection (``web_client``); what stands for an address by itself is known before.
"""

import socket
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from yarl import URL

from conversations.domain.errors import Rejected

MAX_URL_CHARS = 2000
SCHEMES = ("http", "https")

type Allows = Callable[[str], bool]
"""Whether an IP address may be connected to."""


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the Internet, and not to this machine, its
    network, a cloud's metadata service or something that stands for one of them."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    is_special = found.is_multicast or found.is_reserved or found.is_unspecified
    is_local = isinstance(found, IPv6Address) and found.is_site_local
    return found.is_global and not is_special and not is_local


def is_private_host(host: str) -> bool:
    """Whether a URL's host is known, without asking anybody, not to belong to the Internet:
    an address in any form that the system takes for one (``127.1``, ``0x7f000001``,
    ``2130706433``), or a name of this machine."""
    name = host.strip("[]").partition("%")[0].rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        found = socket.getaddrinfo(name, None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):  # a name
        return False
    return not all(is_public(str(address[0])) for *_, address in found)


def read_url(text: str) -> URL:
    """Raises Rejected with a sentence."""
    if len(text) > MAX_URL_CHARS:
        raise Rejected(f"The URL has more than {MAX_URL_CHARS} characters.")
    try:
        url = URL(text)
        is_usable = url.scheme in SCHEMES and bool(url.raw_host) and url.port is not None
    except (ValueError, IndexError) as error:  # the latter of brackets in odd places
        raise Rejected(f"This is no URL: {error}.") from error
    if not is_usable:
        raise Rejected("A URL begins with http:// or https:// and names a host.")
    if url.user is not None or url.password is not None:
        raise Rejected("A URL with a user or a password is not fetched.")
    return url.with_fragment(None)
