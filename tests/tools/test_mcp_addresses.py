"""Hosts to which a tool server can have requests sent."""

from typing import Any

import httpx2
import pytest

from conversations.agent.mcp.config import OAuthConfig, ServerConfig, ServerFailed
from conversations.agent.mcp.http import ServerTransport, require_secure
from conversations.agent.mcp.oauth import revoke
from tests.mcp_servers.running import HttpServer

PUBLIC = ServerConfig(name="a", url="https://93.184.215.14/mcp")
PRIVATE = ServerConfig(name="a", url="http://127.0.0.1:9/mcp")
IN_IPV6 = ServerConfig(name="a", url="http://[2606:4700::1111]/mcp")
NAMED = ServerConfig(name="a", url="http://tickets:8080/mcp")


@pytest.mark.parametrize(
    ("config", "url", "is_allowed"),
    [
        (PUBLIC, "https://auth.example.org/authorize", True),
        (PUBLIC, "http://auth.example.org/authorize", False),
        (PUBLIC, "javascript:alert(1)", False),
        (PUBLIC, "https:///authorize", False),
        (PRIVATE, "http://auth.internal/authorize", True),
        (NAMED, "http://keycloak:8080/authorize", True),
        (PRIVATE, "file:///etc/passwd", False),
        (IN_IPV6, "http://auth.example.org/authorize", False),
    ],
)
def test_address_named_by_a_public_server_must_use_https(
    config: ServerConfig, url: str, is_allowed: bool
) -> None:
    if is_allowed:
        require_secure(url, config)
    else:
        with pytest.raises(ServerFailed, match="not an address of https"):
            require_secure(url, config)


@pytest.mark.parametrize("url", ["http://tickets:80/mcp", "https://Tickets.example:443/mcp"])
def test_default_port_may_be_written_in_the_url(url: str) -> None:
    request = httpx2.Request("POST", url)
    transport = ServerTransport(ServerConfig(name="a", url=url))
    assert transport.is_own(request)


async def test_public_server_cannot_name_a_private_host() -> None:
    async with httpx2.AsyncClient(transport=ServerTransport(PUBLIC), timeout=5) as client:
        for url in ("https://127.0.0.1:1/", "https://localhost:1/", "https://169.254.169.254/"):
            with pytest.raises(httpx2.ConnectError, match="private address"):
                await client.get(url)


@pytest.mark.parametrize("endpoint", ["http://auth.example.org/revoke", "https://127.0.0.1:1/"])
async def test_revocation_at_an_unusable_endpoint_raises_no_error(endpoint: str) -> None:
    kept = {"tokens": {"access_token": "a"}, "oauth_metadata": {"revocation_endpoint": endpoint}}
    await revoke(PUBLIC, kept)


async def test_response_of_a_named_host_is_limited_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conversations.agent.mcp.http.MAX_FOREIGN_RESPONSE_BYTES", 10)
    with HttpServer("oauth_server.py") as server:
        async with httpx2.AsyncClient(transport=ServerTransport(PRIVATE)) as client:
            where = server.url.replace("/mcp", "/.well-known/oauth-authorization-server")
            with pytest.raises(httpx2.ReadError, match="more than 10 bytes"):
                await client.get(where)


def test_client_secret_is_not_shown_in_the_repr() -> None:
    made: dict[str, Any] = {"client_id": "a", "client_secret": "hidden"}
    assert "hidden" not in repr(ServerConfig(name="a", oauth=OAuthConfig(**made)))
