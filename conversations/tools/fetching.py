"""One GET of a public web page, that cannot be turned against this network.

Every connection goes through one gate: the address that the socket is about to connect to
is looked at, whatever name, number or redirect led there. So a name cannot lead to one
address when it is checked and to another when it is used.
"""

import asyncio
import socket
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
from yarl import URL

from conversations.domain.errors import Rejected

from .web_addresses import Allows, is_public, read_url

MAX_BYTES = 5 * 2**20
MAX_REDIRECTS = 5
SECONDS = 30.0
HEADERS = {
    "User-Agent": "Loom-Web (fetch_url)",
    "Accept": "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.5",
}


class PrivateAddress(OSError):
    """What a host's name leads to is no public address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What a server answered. ``moved_to``: it sends the reader to another host, which
    was not asked. ``is_cut``: there was more than is taken."""

    url: str
    status: int
    media_type: str
    charset: str
    body: bytes
    is_cut: bool = False
    moved_to: str = ""


async def fetch(url: URL, *, allows: Allows = is_public) -> Fetched:
    """Get the page, following redirects on the same host. ``allows`` says which
    addresses may be connected to. Raises Rejected with a sentence."""
    connector = aiohttp.TCPConnector(
        resolver=aiohttp.ThreadedResolver(),
        use_dns_cache=False,
        socket_factory=partial(_open_socket, allows),
    )
    try:
        async with (
            asyncio.timeout(SECONDS),
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=HEADERS,
                trust_env=False,
            ) as client,
        ):
            return await _follow(client, url)
    except TimeoutError as error:
        raise Rejected(f"{url.host} did not answer within {SECONDS:g} seconds.") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise Rejected(_explain(error, url)) from error


def _open_socket(
    allows: Allows, found: tuple[Any, Any, int, str, tuple[Any, ...]]
) -> socket.socket:
    family, kind, protocol, _, address = found
    if not allows(address[0]):
        raise PrivateAddress("private address")
    return socket.socket(family, kind, protocol)


async def _follow(client: aiohttp.ClientSession, url: URL) -> Fetched:
    for _ in range(MAX_REDIRECTS + 1):
        async with client.get(url, allow_redirects=False) as response:
            location = response.headers.get("Location")
            if response.status not in (301, 302, 303, 307, 308) or not location:
                return await _read(response, url)
        target = read_url(str(url.join(URL(location))))
        if target.raw_host != url.raw_host:
            return Fetched(
                url=str(url),
                status=response.status,
                media_type="",
                charset="",
                body=b"",
                moved_to=str(target),
            )
        url = target
    raise Rejected(f"{url.host} redirects more than {MAX_REDIRECTS} times.")


async def _read(response: aiohttp.ClientResponse, url: URL) -> Fetched:
    body = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        body += chunk
        if len(body) > MAX_BYTES:
            break
    return Fetched(
        url=str(url),
        status=response.status,
        media_type=response.content_type,
        charset=response.charset or "",
        body=bytes(body[:MAX_BYTES]),
        is_cut=len(body) > MAX_BYTES,
    )


def _explain(error: Exception, url: URL) -> str:
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or getattr(causes[-1], "os_error", None)) is not None:
        causes.append(cause)
        if len(causes) > 10:
            break
    if any(isinstance(cause, PrivateAddress) for cause in causes):
        return f"{url.host} is not on the Internet: private addresses are not fetched."
    if isinstance(error, aiohttp.InvalidURL):
        return f"{url.host} is no host that pages are fetched from."
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"There is no host {url.host}, or its name could not be resolved."
    if isinstance(error, aiohttp.ClientSSLError):
        return f"{url.host} has no valid certificate."
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{url.host} cannot be reached."
    return f"{url.host} did not answer as a web server does ({type(error).__name__})."
