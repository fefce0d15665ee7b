"""A client for the web that cannot be turned against this network.

Every connection goes through one gate: the address that the socket is about to connect to is looked
at, whatever name, number or redirect led there. So a name cannot lead to one address when it is
checked and to another when it is used.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import nh3
from yarl import URL

from conversations.domain.errors import Rejected

if TYPE_CHECKING:
    import aiohttp

MAX_URL_CHARS = 2000
SCHEMES = ("http", "https")

type Allows = Callable[[str], bool]  # Whether an IP address may be connected to


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the Internet, and not to this machine, its network, a
    cloud's metadata service or something that stands for one of them."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    is_special = found.is_multicast or found.is_reserved or found.is_unspecified
    is_local = isinstance(found, IPv6Address) and found.is_site_local
    return found.is_global and not is_special and not is_local


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

MAX_BYTES = 5 * 2**20
MAX_REDIRECTS = 5
SECONDS = 30.0
HEADERS = {
    "User-Agent": "Loom-Web (fetch_url)",
    "Accept": "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.5",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What a server answered. ``moved_to``: it sends the reader to another host, which was not
    asked. ``is_cut``: there was more than is taken."""

    url: str
    status: int
    media_type: str = ""
    charset: str = ""
    body: bytes = b""
    is_cut: bool = False
    moved_to: str = ""


async def fetch(url: URL, *, allows: Allows = is_public) -> Fetched:
    """Get the page, following redirects on the same host. ``allows`` says which addresses may be
    connected to. Raises Rejected with a sentence."""
    import aiohttp

    try:
        async with asyncio.timeout(SECONDS), open_client(allows, headers=HEADERS) as client:
            return await _follow(client, url)
    except TimeoutError as error:
        raise Rejected(
            "%(host)s did not respond within %(seconds)s seconds.",
            host=url.host,
            seconds=f"{SECONDS:g}",
        ) from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise Rejected(explain(error, url)) from error


async def _follow(client: "aiohttp.ClientSession", url: URL) -> Fetched:
    for _ in range(MAX_REDIRECTS + 1):
        async with client.get(url, allow_redirects=False) as response:
            location = response.headers.get("Location")
            if response.status not in (301, 302, 303, 307, 308) or not location:
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
        target = read_url(str(url.join(URL(location))))
        if target.raw_host != url.raw_host:
            return Fetched(url=str(url), status=response.status, moved_to=str(target))
        url = target
    raise Rejected(
        "%(host)s redirects more than %(limit)s times.", host=url.host, limit=MAX_REDIRECTS
    )


# A web page as text that a model reads: headings, paragraphs, lists, code, links.

_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_BLOCKS = {
    *_HEADINGS,
    *("article", "aside", "blockquote", "dd", "div", "dl", "dt", "figcaption", "figure", "footer"),
    *("header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "tr", "ul"),
}
_INLINE = {"a", "br", "code", "img", "td", "th", "title"}
_LEFT_OUT = {"iframe", "math", "noscript", "object", "script", "style", "svg", "template"}
_SPACE = re.compile(r"\s+")
_GAPS = re.compile(r"\n(?:[ \t]*\n){2,}")
_ENDS = re.compile(r"[ \t]+\n")


def html_to_text(html: str, *, base: str) -> str:
    """The page's readable text. Links are written as ``[text](address)``, addresses in full. nh3
    repairs the page first, so that no page is hard to parse."""
    clean = nh3.clean(
        html,
        tags=_BLOCKS | _INLINE,
        clean_content_tags=_LEFT_OUT,
        attributes={"a": {"href"}, "img": {"alt"}},
        link_rel=None,
        strip_comments=True,
    )
    reader = _Reader(base)
    reader.feed(clean)
    reader.close()
    return _GAPS.sub("\n\n", _ENDS.sub("\n", "".join(reader.pieces))).strip()


class _Reader(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._base = base
        self._verbatim = 0
        self._links: list[tuple[str, int]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in _BLOCKS or tag == "title":
            self.pieces.append("\n" if tag in ("li", "tr", "dt", "dd") else "\n\n")
        if tag in _HEADINGS:
            self.pieces.append(f"{_HEADINGS[tag]} ")
        elif tag == "li":
            self.pieces.append("- ")
        elif tag == "pre":
            self._verbatim += 1
            self.pieces.append("```\n")
        elif tag == "br":
            self.pieces.append("\n")
        elif tag == "a":
            self._links.append((values.get("href") or "", len(self.pieces)))
        elif tag == "img" and values.get("alt"):
            self.pieces.append(f"[{values['alt']}]")

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._links:
            address, begin = self._links.pop()
            text = _SPACE.sub(" ", "".join(self.pieces[begin:]).strip())
            if text and address and not address.startswith("#"):
                with suppress(ValueError):  # no address
                    self.pieces[begin:] = [f"[{text}]({urljoin(self._base, address)})"]
        elif tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)
            self.pieces.append("\n```")
        elif tag in ("td", "th"):
            self.pieces.append(" | ")
        if (tag in _BLOCKS and tag not in ("li", "tr", "dt", "dd")) or tag == "title":
            self.pieces.append("\n\n")

    def handle_data(self, data: str) -> None:
        self.pieces.append(data if self._verbatim else _SPACE.sub(" ", data))
