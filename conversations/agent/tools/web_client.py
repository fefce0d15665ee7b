"""A client for the web that cannot be turned against this network.

Every connection goes through one gate: the address that the socket is about to connect to is looked
at, whatever name, number or redirect led there. So a name cannot lead to one address when it is
checked and to another when it is used.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

from yarl import URL

from conversations.domain.errors import Rejected

if TYPE_CHECKING:
    import aiohttp

MAX_URL_CHARS = 2000
SCHEMES = ("http", "https")
AZURE_METADATA = "168.63.129.16"  # Of the cloud's own machines, though it looks like a public one

type Allows = Callable[[str], bool]  # Whether an IP address may be connected to


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the Internet, and not to this machine, its network, a
    cloud's metadata service or something that stands for one of them."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    is_special = found.is_multicast or found.is_reserved or found.is_unspecified
    is_local = isinstance(found, IPv6Address) and found.is_site_local
    return found.is_global and not is_special and not is_local and str(found) != AZURE_METADATA


def is_private_host(host: str) -> bool:
    """Whether a URL's host is known, without asking anybody, not to belong to the Internet: an
    address in any form that the system takes for one (``127.1``, ``0x7f000001``, ``2130706433``),
    or a name of this machine."""
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
        raise Rejected("The URL has more than %(limit)s characters.", limit=MAX_URL_CHARS)
    try:
        url = URL(text)
        is_usable = url.scheme in SCHEMES and bool(url.host) and url.port is not None
    except (ValueError, IndexError) as error:  # the latter of brackets in odd places
        raise Rejected("This is not a valid URL: %(reason)s.", reason=str(error)) from error
    if not is_usable:
        raise Rejected("A URL must begin with http:// or https:// and name a host.")
    if url.user is not None or url.password is not None:
        raise Rejected("URLs with a username or password are not fetched.")
    return url.with_fragment(None)


class PrivateAddress(OSError):
    """What a host's name leads to is no public address."""


def open_client(allows: Allows, *, headers: Mapping[str, str]) -> "aiohttp.ClientSession":
    """A client without cookies, proxies or memory. ``allows`` says which addresses may be connected
    to. To be used as a context."""
    import aiohttp  # which takes a third of a second to load

    from .web_names import Resolver

    def open_socket(found: tuple[Any, Any, int, str, tuple[Any, ...]]) -> socket.socket:
        family, kind, protocol, _, address = found
        if not allows(address[0]):
            raise PrivateAddress("private address")
        return socket.socket(family, kind, protocol)

    connector = aiohttp.TCPConnector(
        resolver=Resolver(), use_dns_cache=False, socket_factory=open_socket
    )
    return aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), headers=headers, trust_env=False
    )


def explain(error: Exception, url: URL) -> str:
    """Why a request failed, as a sentence that names the host and nothing else of the URL."""
    import aiohttp

    host = url.raw_host  # the other form fails for some that a registry would not take
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or getattr(causes[-1], "os_error", None)) is not None:
        causes.append(cause)
        if len(causes) > 10:
            break
    if any(isinstance(cause, PrivateAddress) for cause in causes):
        return f"{host} is a private address; only the public Internet can be reached."
    if isinstance(error, aiohttp.InvalidURL):
        return f"{host} is not a valid host name."
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"The host {host} does not exist, or its name could not be resolved."
    if isinstance(error, aiohttp.ClientSSLError):
        return f"{host} has no valid certificate."
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{host} is unreachable."
    return f"{host} did not respond like a web server ({type(error).__name__})."


# One GET of a public web page, that cannot be turned against this network.

MAX_BODY_BYTES = 5 * 2**20
MAX_REDIRECTS = 5
TIMEOUT_SECONDS = 30.0
HEADERS = {
    "User-Agent": "Loom-Web (fetch_url)",
    "Accept": "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.5",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """What a server answered. ``moved_to``: it sends the reader to another host, which was not
    asked. ``is_cut``: there was more than is taken."""

    url: str
    status: int
    media_type: str = ""
    charset: str = ""
    body: bytes = b""
    is_cut: bool = False
    moved_to: str = ""


async def fetch(url: URL, *, allows: Allows = is_public) -> FetchResponse:
    """Get the page, following redirects on the same host. ``allows`` says which addresses may be
    connected to. Raises Rejected with a sentence."""
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
