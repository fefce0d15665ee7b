"""Tool servers that ask for a sign-in: granted once, refreshed, refused, forgotten."""

import asyncio
import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from asgiref.sync import sync_to_async

from conversations.agent.mcp.servers import ServerState
from conversations.archive.tool_server_grants import (
    ServerKey,
    keep_answer,
    read_secrets,
    save_secrets,
)
from conversations.domain.errors import Rejected
from conversations.models import Session, ToolServerGrant
from conversations.runtime.service import Runtime
from tests.mcp_servers.running import HttpServer, config
from tests.runtime.test_tool_questions import garden_auto
from tests.runtime.tool_stories import answers, results
from tests.tools.test_mcp import QUICK
from tests.wire.server import WireThread

__all__ = ["garden_auto"]

pytestmark = pytest.mark.django_db(transaction=True)

type Start = Callable[..., Any]

BACK = "http://testserver/tool-servers/callback/"
NAME = "garden-house"


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with HttpServer("oauth_server.py") as running:
        yield running


def get(url: str) -> tuple[str, str]:
    """Where a browser is sent, and the body."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.netloc, timeout=10)) as connection:
        connection.request("GET", f"{parts.path}?{parts.query}")
        response = connection.getresponse()
        return response.headers.get("Location", ""), response.read().decode()


async def log_of(server: HttpServer) -> list[str]:
    _, body = await asyncio.to_thread(get, server.url.replace("/mcp", "/log"))
    found: list[str] = json.loads(body)
    return found


def state_of(runtime: Runtime, session: Session) -> ServerState:
    [state] = runtime.tool_servers.describe(session.workspace.slug)
    return state


async def until(runtime: Runtime, session: Session, reached: Callable[[ServerState], bool]) -> None:
    async with asyncio.timeout(20):
        while not reached(state_of(runtime, session)):
            await asyncio.sleep(0.02)


async def sign_in(runtime: Runtime, session: Session) -> dict[str, str]:
    """As a browser does; the answer that it brings back."""
    url = await runtime.tool_servers.begin_sign_in(
        session.workspace.slug,
        Path(session.workspace.root),
        NAME,
        user_pk=session.owner_id,
        redirect_uri=BACK,
    )
    back, _ = await asyncio.to_thread(get, url)
    assert back.startswith(BACK)
    answer = dict(parse_qsl(urlsplit(back).query))
    await sync_to_async(keep_answer)(answer, user_pk=session.owner_id)
    await until(runtime, session, lambda state: state.state == "ready")
    return answer


async def call(runtime: Runtime, session: Session, wire: WireThread, number: int) -> str:
    wire.enqueue(*answers((f"mcp__{NAME}__echo", {"text": str(number)}), prefix=f"c{number}"))
    await runtime.send(session, client_id=f"client-{number}", text="go", user_pk=session.owner_id)
    await runtime.wait_idle(session.pk)
    return (await results(session))[-1]


async def test_a_sign_in_is_granted_once_and_refreshed(
    start_runtime: Start, wire: WireThread, garden_auto: Session, server: HttpServer
) -> None:
    garden = garden_auto
    made = config(**{NAME: {"url": server.url}})
    runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    await until(runtime, garden, lambda state: state.needs_sign_in)
    assert (state_of(runtime, garden).state, await log_of(server)) == ("failed", [])
    answer = await sign_in(runtime, garden)
    with pytest.raises(Rejected, match="is over"):
        await sync_to_async(keep_answer)(answer, user_pk=garden.owner_id)
    assert (await call(runtime, garden, wire, 1)).startswith("1 from")
    assert await log_of(server) == ["register", f"authorize {server.url}", "authorization_code"]
    grant = await ToolServerGrant.objects.aget()
    assert (grant.granted_by_id, grant.workspace) == (garden.owner_id, "")
    key = ServerKey(workspace="", name=NAME, url=server.url)
    kept = await sync_to_async(read_secrets)(key)
    assert kept["tokens"]["access_token"] not in grant.secrets
    elsewhere = ServerKey(workspace="", name=NAME, url="https://example.org/mcp")
    assert await sync_to_async(read_secrets)(elsewhere) == {}
    # Over a restart, and when the token has run out.
    await runtime.stop()
    await sync_to_async(save_secrets)(key, expires_at=time() - 1)
    runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    assert (await call(runtime, garden, wire, 2)).startswith("2 from")
    assert (await log_of(server))[3:] == ["refresh_token"]
    # Until the server does not accept it any more.
    await asyncio.to_thread(get, server.url.replace("/mcp", "/forget"))
    assert "Sign-in needed" in await call(runtime, garden, wire, 3)
    await until(runtime, garden, lambda state: state.needs_sign_in)
    await sign_in(runtime, garden)
    assert (await call(runtime, garden, wire, 4)).startswith("4 from")
    await runtime.tool_servers.sign_out(garden.workspace.slug, Path(garden.workspace.root), NAME)
    assert not await ToolServerGrant.objects.aexists()
    assert (await log_of(server))[-1] == "revoke"
    assert state_of(runtime, garden).needs_sign_in


async def test_an_answer_of_somebody_else_does_not_count(
    start_runtime: Start, garden_auto: Session, server: HttpServer, django_user_model: Any
) -> None:
    garden = garden_auto
    made = config(**{NAME: {"url": server.url}})
    runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    root = Path(garden.workspace.root)
    fields: dict[str, Any] = {"user_pk": garden.owner_id, "redirect_uri": BACK}
    url = await runtime.tool_servers.begin_sign_in(garden.workspace.slug, root, NAME, **fields)
    back, _ = await asyncio.to_thread(get, url)
    answer = dict(parse_qsl(urlsplit(back).query))
    other = await django_user_model.objects.acreate(username="eve")
    for changed, user_pk in ((answer, other.pk), (answer | {"state": "x"}, garden.owner_id)):
        with pytest.raises(Rejected, match="belongs to somebody else"):
            await sync_to_async(keep_answer)(changed, user_pk=user_pk)
    # Another issuer than the one that was asked (a mix-up).
    mixed = answer | {"iss": "https://example.org"}
    await sync_to_async(keep_answer)(mixed, user_pk=garden.owner_id)
    async with asyncio.timeout(10):
        while (grant := await ToolServerGrant.objects.aget()).state_digest:
            await asyncio.sleep(0.02)
    assert "sign-in failed" in grant.problem
    assert grant.granted_at is None
    assert "authorization_code" not in await log_of(server)


async def test_metadata_of_another_issuer_is_refused(
    start_runtime: Start, garden_auto: Session
) -> None:
    with HttpServer("oauth_server.py", ISSUER="https://example.org") as server:
        runtime: Runtime = await start_runtime(
            mcp=config(**{NAME: {"url": server.url}}), mcp_timing=QUICK
        )
        slug, root = garden_auto.workspace.slug, Path(garden_auto.workspace.root)
        fields: dict[str, Any] = {"user_pk": garden_auto.owner_id, "redirect_uri": BACK}
        with pytest.raises(Rejected, match=f"{NAME}: The sign-in failed"):
            await runtime.tool_servers.begin_sign_in(slug, root, NAME, **fields)
        assert await log_of(server) == []


async def test_a_client_signs_in_as_itself(
    start_runtime: Start, wire: WireThread, garden_auto: Session, server: HttpServer
) -> None:
    own = {"grant": "client_credentials", "client_id": "loom", "client_secret": "s"}
    issuer = server.url.removesuffix("/mcp")
    made = config(**{NAME: {"url": server.url, "oauth": own | {"issuer": issuer}}})
    runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    assert (await call(runtime, garden_auto, wire, 1)).startswith("1 from")
    assert await log_of(server) == ["client_credentials"]
