"""The client that the conformance suite of the protocol's authors tests.

``python -m tests.clients.mcp_conformance.client URL`` connects to one of the suite's servers and
calls all its tools, as the product does.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx2

from conversations.agent.mcp.config import GrantStore, ServerConfig, ServerFailed, parse_config
from conversations.agent.mcp.connection import READY, ConnectionTiming, ToolServerConnection
from conversations.agent.mcp.oauth import sign_in
from conversations.domain.tool_questions import make_question, read_content

BACK = "http://127.0.0.1:9/callback"

SAMPLES = {"number": 5, "integer": 5, "string": "beans", "boolean": True}


async def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Accept a question with its default values."""
    question = make_question(asked, call="", server="conformance")
    return {"action": "accept", "content": read_content(question, {})}


class Kept(dict[str, Any]):
    """A grant in memory."""

    @property
    def grants(self) -> GrantStore:
        async def read() -> dict[str, Any]:
            return self

        async def keep(**changed: Any) -> None:
            self.update(changed)

        async def replace(_: Any, **changed: Any) -> None:
            self.update(changed)

        return GrantStore(read=read, save=keep, replace=replace, refresh_lock=nullcontext)


async def sign_in_at_once(config: ServerConfig, grants: GrantStore) -> None:
    """Sign in like a person whose browser is redirected back without a question."""
    answers: list[dict[str, str]] = []

    async def show(url: str, _: str) -> None:
        async with httpx2.AsyncClient() as browser:
            response = await browser.get(url, follow_redirects=False)
        answers.append(dict(parse_qsl(urlsplit(response.headers["location"]).query)))

    async def wait_for_answer(_: str) -> dict[str, str]:
        return answers[-1]

    kept = await grants.read()
    granted = await sign_in(
        config, kept, redirect_uri=BACK, show=show, wait_for_answer=wait_for_answer
    )
    await grants.save(**granted)


async def read_oauth(url: str) -> dict[str, str]:
    """Return the OAuth settings for the client.

    The suite gives the ID and the secret of a client that is registered already. An administrator
    would know the grant and the issuer.
    """
    given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    known = {name: given[name] for name in ("client_id", "client_secret") if name in given}
    if "client-credentials" in os.environ.get("MCP_CONFORMANCE_SCENARIO", ""):
        where = urljoin(url, "/.well-known/oauth-protected-resource/mcp")
        async with httpx2.AsyncClient() as client:
            issuer = (await client.get(where)).json()["authorization_servers"][0]
        known |= {"grant": "client_credentials", "issuer": issuer}
    return known


async def main(url: str) -> None:
    server = {"url": url, "oauth": await read_oauth(url)}
    config = parse_config({"servers": {"conformance": server}}, environment={})
    grants = Kept().grants
    connection = ToolServerConnection(
        config.servers["conformance"], root=None, timing=ConnectionTiming(), grants=grants
    )
    connection.use()
    await connection.wait_connected(seconds=30)
    if connection.needs_sign_in:
        await sign_in_at_once(connection.config, grants)
        connection.connect_again()
        await connection.wait_connected(seconds=30)
    if connection.state != READY:
        sys.exit(connection.reason)
    for offer in connection.offers:
        properties = offer.input_schema.get("properties", {})
        arguments = {name: SAMPLES.get(one.get("type")) for name, one in properties.items()}
        call = partial(connection.call, offer.own_name, arguments, report=print, ask=answer)
        try:
            print(await call())
        except ServerFailed:  # the call may need more scopes than were granted
            if not connection.needs_sign_in:
                raise
            await sign_in_at_once(connection.config, grants)
            connection.connect_again()
            await connection.wait_connected(seconds=30)
            print(await call())
    await connection.close()


if __name__ == "__main__":
    import django

    django.setup()
    asyncio.run(main(sys.argv[-1]))
