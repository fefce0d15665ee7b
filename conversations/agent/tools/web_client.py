"""An HTTP client that cannot be used to reach this network.

Every connection is checked at one point, by the address to which the socket is about to connect,
regardless of the name, number or redirect that led to it. A name therefore cannot resolve to one
address for the check and to another for the connection.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

from yarl import URL

from conversations.domain.errors import Rejected
from conversations.domain.messages import Message, say

if TYPE_CHECKING:
    import aiohttp

MAX_URL_CHARS = 2000
SCHEMES = ("http", "https")
# An address of the cloud's own machines, although it looks like a public one
AZURE_METADATA = "168.63.129.16"

type Allows = Callable[[str], bool]  # Returns whether the client may connect to an IP address


def is_public(address: str) -> bool:
    """Return whether an IP address is a public address of the Internet.

    Addresses of this machine, of its network, of a cloud's metadata service and of aliases for
    these are not public.
    """
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    is_special = ip.is_multicast or ip.is_reserved or ip.is_unspecified
    is_local = isinstance(ip, IPv6Address) and ip.is_site_local
    return ip.is_global and not is_special and not is_local and str(ip) != AZURE_METADATA


def is_private_host(host: str) -> bool:
    """Return whether a URL's host is private as far as can be known without a lookup.

    That is an address in any form that the system accepts (``127.1``, ``0x7f000001``,
    ``2130706433``), or a name of this machine.
    """
    name = host.strip("[]").partition("%")[0].rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        infos = socket.getaddrinfo(name, None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):  # The host is a name
        return False
    return not all(is_public(str(address[0])) for *_, address in infos)


def read_url(text: str) -> URL:
    """Parse a URL. Raise Rejected with a sentence if it cannot be used."""
    if len(text) > MAX_URL_CHARS:
        raise Rejected("The URL has more than %(limit)s characters.", limit=MAX_URL_CHARS)
    try:
        url = URL(text)
        is_usable = url.scheme in SCHEMES and bool(url.host) and url.port is not None
    except (ValueError, IndexError) as error:  # IndexError is raised for misplaced brackets
        raise Rejected(say("This is not a valid URL.")) from error
    if not is_usable:
        raise Rejected(say("A URL must begin with http:// or https:// and name a host."))
    if url.user is not None or url.password is not None:
        raise Rejected(say("A URL must not contain a username or password."))
    return url.with_fragment(None)


class PrivateAddress(OSError):
    """A host's name leads to an address that is not public."""


def open_client(allows: Allows, *, headers: Mapping[str, str]) -> "aiohttp.ClientSession":
    """Return a client without cookies, proxies or cache, to be used as a context manager.

    ``allows`` decides to which addresses the client may connect.
    """
    import aiohttp  # The import takes a third of a second

    from .web_names import Resolver

    def open_socket(info: tuple[Any, Any, int, str, tuple[Any, ...]]) -> socket.socket:
        family, kind, protocol, _, address = info
        if not allows(address[0]):
            raise PrivateAddress("private address")
        return socket.socket(family, kind, protocol)

    connector = aiohttp.TCPConnector(
        resolver=Resolver(), use_dns_cache=False, socket_factory=open_socket
    )
    return aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), headers=headers, trust_env=False
    )


def explain(error: Exception, url: URL) -> Message:
    """Return a sentence on why a request failed, which names only the host of the URL."""
    import aiohttp

    host = url.raw_host  # The decoded host fails for some names that a registry would not accept
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or getattr(causes[-1], "os_error", None)) is not None:
        causes.append(cause)
        if len(causes) > 10:
            break
    if any(isinstance(cause, PrivateAddress) for cause in causes):
        return say(
            "%(host)s is a private address; only the public Internet can be reached.", host=host
        )
    if isinstance(error, aiohttp.InvalidURL):
        return say("%(host)s is not a valid host name.", host=host)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return say(
            "The host %(host)s does not exist, or its name could not be resolved.", host=host
        )
    if isinstance(error, aiohttp.ClientSSLError):
        return say("%(host)s has no valid certificate.", host=host)
    if isinstance(error, aiohttp.ClientConnectorError):
        return say("%(host)s is unreachable.", host=host)
    return say(
        "%(host)s did not respond like a web server (%(error)s).",
        host=host,
        error=type(error).__name__,
    )


# A GET request for a public web page.

MAX_BODY_BYTES = 5 * 2**20
MAX_REDIRECTS = 5
TIMEOUT_SECONDS = 30.0
HEADERS = {
    "User-Agent": "Loom-Web (fetch_url)",
    "Accept": "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.5",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """The answer of a server.

    ``moved_to`` is set if the server redirects to another host, which was not asked. ``is_cut`` is
    true if the body was longer than the limit.
    """

    url: str
    status: int
    media_type: str = ""
    charset: str = ""
    body: bytes = b""
    is_cut: bool = False
    moved_to: str = ""


async def fetch(url: URL, *, allows: Allows = is_public) -> FetchResponse:
    """Get the page, following redirects on the same host.

    ``allows`` decides to which addresses the client may connect. Raise Rejected with a sentence if
    the request fails.
    """
    import aiohttp

    try:
        async with asyncio.timeout(TIMEOUT_SECONDS), open_client(allows, headers=HEADERS) as client:
            return await _follow(client, url)
    except TimeoutError as error:
        raise Rejected(
            "%(host)s did not respond within %(seconds)s seconds.",
            host=url.host,
            seconds=f"{TIMEOUT_SECONDS:g}",
        ) from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise Rejected(explain(error, url)) from error


async def _follow(client: "aiohttp.ClientSession", url: URL) -> FetchResponse:
    for _ in range(MAX_REDIRECTS + 1):
        async with client.get(url, allow_redirects=False) as response:
            location = response.headers.get("Location")
            if response.status not in (301, 302, 303, 307, 308) or not location:
                body = bytearray()
                async for chunk in response.content.iter_chunked(64 * 1024):
                    body += chunk
                    if len(body) > MAX_BODY_BYTES:
                        break
                return FetchResponse(
                    url=str(url),
                    status=response.status,
                    media_type=response.content_type,
                    charset=response.charset or "",
                    body=bytes(body[:MAX_BODY_BYTES]),
                    is_cut=len(body) > MAX_BODY_BYTES,
                )
        target = read_url(str(url.join(URL(location))))
        if target.raw_host != url.raw_host:
            return FetchResponse(url=str(url), status=response.status, moved_to=str(target))
        url = target
    raise Rejected(
        "%(host)s redirects more than %(limit)s times.", host=url.host, limit=MAX_REDIRECTS
    )
