"""One GET of a public web page, that cannot be turned against this network."""

import asyncio
from dataclasses import dataclass

import aiohttp
from yarl import URL

from conversations.domain.errors import Rejected

from .web_addresses import Allows, is_public, read_url
from .web_client import explain, open_client

MAX_BYTES = 5 * 2**20
MAX_REDIRECTS = 5
SECONDS = 30.0
HEADERS = {
    "User-Agent": "Loom-Web (fetch_url)",
    "Accept": "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.5",
}


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
    try:
        async with asyncio.timeout(SECONDS), open_client(allows, headers=HEADERS) as client:
            return await _follow(client, url)
    except TimeoutError as error:
        raise Rejected(f"{url.host} did not answer within {SECONDS:g} seconds.") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise Rejected(explain(error, url)) from error


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
