"""A client for the web that cannot be turned against this network.

Every connection goes through one gate: the address that the socket is about to connect to
is looked at, whatever name, number or redirect led there. So a name cannot lead to one
address when it is checked and to another when it is used.
"""

import socket
from collections.abc import Mapping
from functools import partial
from typing import Any

import aiohttp
from yarl import URL

from .web_addresses import Allows


class PrivateAddress(OSError):
    """What a host's name leads to is no public address."""


def open_client(allows: Allows, *, headers: Mapping[str, str]) -> aiohttp.ClientSession:
    """A client without cookies, proxies or memory. ``allows`` says which addresses may be
    connected to. To be used as a context."""
    connector = aiohttp.TCPConnector(
        resolver=aiohttp.ThreadedResolver(),
        use_dns_cache=False,
        socket_factory=partial(_open_socket, allows),
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        trust_env=False,
    )


def _open_socket(
    allows: Allows, found: tuple[Any, Any, int, str, tuple[Any, ...]]
) -> socket.socket:
    family, kind, protocol, _, address = found
    if not allows(address[0]):
        raise PrivateAddress("private address")
    return socket.socket(family, kind, protocol)


def explain(error: Exception, url: URL) -> str:
    """Why a request failed, as a sentence that names the host and nothing else of the URL."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or getattr(causes[-1], "os_error", None)) is not None:
        causes.append(cause)
        if len(causes) > 10:
            break
    if any(isinstance(cause, PrivateAddress) for cause in causes):
        return f"{url.host} is not on the Internet: private addresses are refused."
    if isinstance(error, aiohttp.InvalidURL):
        return f"{url.host} is no host that can be asked."
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"There is no host {url.host}, or its name could not be resolved."
    if isinstance(error, aiohttp.ClientSSLError):
        return f"{url.host} has no valid certificate."
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{url.host} cannot be reached."
    return f"{url.host} did not answer as a web server does ({type(error).__name__})."
