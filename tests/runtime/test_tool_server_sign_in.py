"""Tool servers that require a sign-in: granted once, refreshed, refused and revoked."""

import asyncio
import http.client
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from asgiref.sync import sync_to_async
from django.core.management import CommandError, call_command

from conversations.agent.mcp.config import ServerFailed
from conversations.agent.mcp.servers import ServerState
from conversations.archive.tool_server_grants import (
    ServerKey,
    read_secrets,
    replace_tokens,
    save_answer,
    save_secrets,
)
from conversations.domain.errors import Rejected
from conversations.models import Session, ToolServerGrant
from conversations.runtime.service import Runtime
from tests.mcp_servers.running import HttpServer, config
from tests.runtime.conftest import HttpServers
from tests.runtime.test_tool_questions import garden_auto
from tests.runtime.tool_stories import answers, results
from tests.starting import Starts
from tests.tools.test_mcp import QUICK
from tests.wire.server import WireThread

__all__ = ["garden_auto"]

pytestmark = pytest.mark.django_db(transaction=True)

type Start = Callable[..., Any]

BACK = "http://testserver/tool-servers/callback/"
NAME = "garden-house"


@pytest.fixture
def server(http_servers: HttpServers) -> Iterator[HttpServer]:
    with http_servers("oauth_server.py") as running:
        yield running


def get(url: str) -> tuple[str, str]:
    """Return the address that a response redirects to, and the response's body."""
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


async def begin(runtime: Runtime, session: Session) -> str:
    workspace = session.workspace
    async with asyncio.timeout(10):
        return await runtime.tool_servers.begin_sign_in(
            workspace.slug,
            Path(workspace.root),
            NAME,
            user_pk=session.owner_id,
            redirect_uri=BACK,
        )


async def sign_in(runtime: Runtime, session: Session) -> dict[str, str]:
    """Sign in as a browser does, and return the answer that it brings back."""
    url = await begin(runtime, session)
    back, _ = await asyncio.to_thread(get, url)
    assert back.startswith(BACK)
    answer = dict(parse_qsl(urlsplit(back).query))
    await sync_to_async(save_answer)(answer, user_pk=session.owner_id)
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
    # The first sign-in is not finished, and the server forgets the client.
    await begin(runtime, garden)
    await asyncio.to_thread(get, server.url.replace("/mcp", "/forget?clients"))
    answer = await sign_in(runtime, garden)
    for late in (answer, {"error": "access_denied"}):
        with pytest.raises(Rejected, match="has expired"):
            await sync_to_async(save_answer)(late, user_pk=garden.owner_id)
    assert (await call(runtime, garden, wire, 1)).startswith("1 from")
    assert (await log_of(server))[2:] == [f"authorize {server.url}", "authorization_code"]
    grant = await ToolServerGrant.objects.aget()
    assert (grant.granted_by_id, grant.workspace) == (garden.owner_id, "")
    key = ServerKey(workspace="", name=NAME, url=server.url)
    kept = await sync_to_async(read_secrets)(key)
    assert kept["tokens"]["access_token"] not in grant.secrets
    elsewhere = ServerKey(workspace="", name=NAME, url="https://example.org/mcp")
    assert await sync_to_async(read_secrets)(elsewhere) == {}
    # The grant outlasts a restart and is refreshed when its token has expired.
    await runtime.stop()
    await sync_to_async(save_secrets)(key, expires_at=time() - 1)
    runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    assert (await call(runtime, garden, wire, 2)).startswith("2 from")
    assert (await log_of(server))[4:] == ["refresh_token"]
    # The server does not accept the grant any more.
    await asyncio.to_thread(get, server.url.replace("/mcp", "/forget"))
    assert "Sign-in required" in await call(runtime, garden, wire, 3)
    await until(runtime, garden, lambda state: state.needs_sign_in)
    await asyncio.to_thread(get, server.url.replace("/mcp", "/forget?clients"))
    await sign_in(runtime, garden)
    assert (await call(runtime, garden, wire, 4)).startswith("4 from")
    await runtime.tool_servers.sign_out(garden.workspace.slug, Path(garden.workspace.root), NAME)
    assert not await ToolServerGrant.objects.aexists()
    assert (await log_of(server))[-1] == "revoke"
    await until(runtime, garden, lambda state: state.needs_sign_in)


async def test_processes_share_a_grant(
    start_runtime: Start, garden_auto: Session, server: HttpServer
) -> None:
    garden, workspace = garden_auto, garden_auto.workspace
    made = config(**{NAME: {"url": server.url}})
    runtimes = [await start_runtime(mcp=made, mcp_timing=QUICK) for _ in range(2)]
    one, other = runtimes
    await sign_in(one, garden)
    key = ServerKey(workspace="", name=NAME, url=server.url)
    await sync_to_async(save_secrets)(key, expires_at=time() - 1)
    where = workspace.slug, Path(workspace.root), NAME
    await asyncio.gather(*(runtime.tool_servers.connect_again(*where) for runtime in runtimes))
    for runtime in runtimes:
        await until(runtime, garden, lambda state: state.state == "ready")
    assert (await log_of(server)).count("refresh_token") == 1
    # A sign-out in one process ends the grant in the other process too.
    before = (await sync_to_async(read_secrets)(key))["tokens"]
    await one.tool_servers.sign_out(*where)
    [connection] = other.tool_servers._connections.values()
    with pytest.raises(ServerFailed, match="Sign-in required"):
        await connection.call("echo", {"text": "hello"}, report=print)
    assert other.tool_servers.describe(workspace.slug)[0].needs_sign_in
    # The tokens of a late refresh are stored neither without a grant nor in the next grant.
    await sync_to_async(replace_tokens)(key, before, tokens={"access_token": "late"})
    assert not await ToolServerGrant.objects.aexists()
    await sign_in(one, garden)
    await sync_to_async(replace_tokens)(key, before, tokens={"access_token": "late"})
    given = await connection.call("echo", {"text": "hello"}, report=print)
    assert given["content"][0]["text"].startswith("hello")


async def test_only_a_refused_refresh_requires_a_new_sign_in(
    start_runtime: Start, garden_auto: Session, server: HttpServer
) -> None:
    made = config(**{NAME: {"url": server.url}})
    runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    await sign_in(runtime, garden_auto)
    key = ServerKey(workspace="", name=NAME, url=server.url)
    [connection] = runtime.tool_servers._connections.values()
    for status, words in ((503, "HTTP 503"), (400, "Sign-in required")):
        await until(runtime, garden_auto, lambda state: state.state == "ready")
        await asyncio.to_thread(get, server.url.replace("/mcp", f"/fail?{status}"))
        await sync_to_async(save_secrets)(key, expires_at=time() - 1)
        with pytest.raises(ServerFailed, match=words):
            await connection.call("echo", {"text": "hello"}, report=print)
        assert state_of(runtime, garden_auto).needs_sign_in == (status == 400)
        await asyncio.to_thread(get, server.url.replace("/mcp", "/fail"))


async def test_a_server_can_require_a_sign_in_for_calls_only(
    start_runtime: Start, garden_auto: Session, http_servers: HttpServers
) -> None:
    garden = garden_auto
    with http_servers("oauth_server.py", CALLS="1") as server:
        made = config(**{NAME: {"url": server.url}})
        runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
        await until(runtime, garden, lambda state: state.state == "ready")
        [connection] = runtime.tool_servers._connections.values()
        with pytest.raises(ServerFailed, match="Sign-in required"):
            await connection.call("echo", {"text": "hello"}, report=print)
        await until(runtime, garden, lambda state: state.state == "ready" and state.needs_sign_in)
        assert state_of(runtime, garden).reason == "Sign-in required."
        await sign_in(runtime, garden)
        await until(runtime, garden, lambda state: not state.needs_sign_in)
        given = await connection.call("echo", {"text": "hello"}, report=print)
        assert given["content"][0]["text"].startswith("hello")


async def test_a_sign_in_answer_of_another_person_or_issuer_is_refused(
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
        with pytest.raises(Rejected, match="belongs to someone else"):
            await sync_to_async(save_answer)(changed, user_pk=user_pk)
    # The answer names another issuer than the one that was asked (a mix-up attack).
    mixed = answer | {"iss": "https://example.org"}
    await sync_to_async(save_answer)(mixed, user_pk=garden.owner_id)
    async with asyncio.timeout(10):
        while (grant := await ToolServerGrant.objects.aget()).state_digest:
            await asyncio.sleep(0.02)
    assert "sign-in failed" in grant.problem
    assert grant.granted_at is None
    assert "authorization_code" not in await log_of(server)


async def test_metadata_of_another_issuer_is_refused(
    start_runtime: Start, garden_auto: Session, http_servers: HttpServers
) -> None:
    with http_servers("oauth_server.py", ISSUER="https://example.org") as server:
        runtime: Runtime = await start_runtime(
            mcp=config(**{NAME: {"url": server.url}}), mcp_timing=QUICK
        )
        slug, root = garden_auto.workspace.slug, Path(garden_auto.workspace.root)
        fields: dict[str, Any] = {"user_pk": garden_auto.owner_id, "redirect_uri": BACK}
        with pytest.raises(Rejected, match=f"{NAME}: The sign-in failed"):
            await runtime.tool_servers.begin_sign_in(slug, root, NAME, **fields)
        assert await log_of(server) == []


@pytest.mark.parametrize(
    ("status", "limits", "reason"),
    [
        ("200", {}, "does not require a sign-in"),
        ("401", {"http.MAX_LINE_BYTES": 20_000}, "a response of more than 20,000 bytes"),
        ("401", {"oauth.SIGN_IN_TIMEOUT_SECONDS": 0.5}, "It did not respond in time"),
    ],
)
async def test_a_sign_in_fails_if_the_response_is_endless(
    start_runtime: Start,
    garden_auto: Session,
    monkeypatch: pytest.MonkeyPatch,
    http_servers: HttpServers,
    status: str,
    limits: dict[str, float],
    reason: str,
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(f"conversations.agent.mcp.{name}", limit)
    with http_servers("endless_server.py", status) as endless:
        made = config(**{NAME: {"url": endless.url}})
        runtime: Runtime = await start_runtime(mcp=made, mcp_timing=replace(QUICK, wait=0.1))
        with pytest.raises(Rejected, match=reason):
            await begin(runtime, garden_auto)


@pytest.mark.parametrize("where", ["register", "token"])
async def test_the_content_of_an_unreadable_response_is_not_shown(
    start_runtime: Start, garden_auto: Session, http_servers: HttpServers, where: str
) -> None:
    with http_servers("oauth_server.py", NESTED=where) as server:
        made = config(**{NAME: {"url": server.url}})
        runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
        try:
            url = await begin(runtime, garden_auto)
        except Rejected as error:
            problem: str = error.message
        else:
            back, _ = await asyncio.to_thread(get, url)
            answer = dict(parse_qsl(urlsplit(back).query))
            await sync_to_async(save_answer)(answer, user_pk=garden_auto.owner_id)
            async with asyncio.timeout(10):
                while (grant := await ToolServerGrant.objects.aget()).state_digest:
                    await asyncio.sleep(0.02)
            problem = grant.problem
        assert "unreadable response" in problem
        assert "not-to-be-seen" not in problem


async def test_a_sign_in_that_is_not_finished_times_out(
    start_runtime: Start,
    garden_auto: Session,
    server: HttpServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("conversations.agent.mcp.servers.MAX_SIGN_IN_AGE", timedelta(seconds=0.1))
    runtime: Runtime = await start_runtime(
        mcp=config(**{NAME: {"url": server.url}}), mcp_timing=QUICK
    )
    await begin(runtime, garden_auto)
    async with asyncio.timeout(10):
        while not (grant := await ToolServerGrant.objects.aget()).problem:
            await asyncio.sleep(0.02)
    assert grant.problem == "Nobody signed in within ten minutes."


BEGUN_AT_ONCE = """
import asyncio
import sys
import django; django.setup()
from pathlib import Path
from conversations.agent.mcp.servers import ToolServers
from conversations.domain.errors import Rejected
from tests.mcp_servers.running import config
assert "mcp" not in sys.modules
async def cross(function, *args, **fields):
    return {}
async def main():
    servers = ToolServers(config(web={"url": sys.argv[1]}), read=cross, write=cross)
    await servers.start()
    await asyncio.sleep(0)
    beginning = servers.begin_sign_in("a", Path("/"), "web", user_pk=1, redirect_uri="http://a/")
    try:
        async with asyncio.timeout(30):
            await beginning
    except Rejected as error:
        print(error.message)
    await servers.stop()
asyncio.run(main())
"""


def test_a_sign_in_can_begin_while_the_sdk_is_being_loaded(
    http_servers: HttpServers, starts: Starts
) -> None:
    with http_servers() as server:
        environment = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"}
        done = starts.run("-c", BEGUN_AT_ONCE, server.url, env=environment)
    assert done.stdout == "web: The tool server does not require a sign-in.\n", done.stderr


async def test_client_credentials_sign_in_without_a_person(
    start_runtime: Start, wire: WireThread, garden_auto: Session, server: HttpServer
) -> None:
    made = config(**{NAME: {"url": server.url, "oauth": own_account(server)}})
    runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    assert (await call(runtime, garden_auto, wire, 1)).startswith("1 from")
    assert await log_of(server) == ["client_credentials"]


def own_account(server: HttpServer) -> dict[str, str]:
    issuer = server.url.removesuffix("/mcp")
    client = {"client_id": "loom", "client_secret": "s"}
    return client | {"grant": "client_credentials", "issuer": issuer}


@pytest.mark.parametrize("is_own_account", [True, False])
async def test_a_long_call_does_not_block_others(
    start_runtime: Start, garden_auto: Session, http_servers: HttpServers, is_own_account: bool
) -> None:
    with http_servers("oauth_server.py", JSON="1", GATE="x-gate") as server:
        oauth = own_account(server) if is_own_account else {}
        fields: dict[str, Any] = {"oauth": oauth, "headers": {"X-Gate": "open"}}
        made = config(**{NAME: {"url": server.url, **fields}})
        runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
        if not is_own_account:
            await sign_in(runtime, garden_auto)
        await until(runtime, garden_auto, lambda state: state.state == "ready")
        [connection] = runtime.tool_servers._connections.values()
        waiting = asyncio.create_task(connection.call("steps", {"count": 0}, report=print))
        async with asyncio.timeout(10):
            await asyncio.sleep(0.1)
            await connection.call("echo", {"text": "hello"}, report=print)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_a_token_is_renewed_once_for_concurrent_calls(
    start_runtime: Start, garden_auto: Session, server: HttpServer
) -> None:
    made = config(**{NAME: {"url": server.url, "oauth": own_account(server)}})
    runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    await until(runtime, garden_auto, lambda state: state.state == "ready")
    await asyncio.to_thread(get, server.url.replace("/mcp", "/forget"))
    [connection] = runtime.tool_servers._connections.values()
    calls = [connection.call("echo", {"text": text}, report=print) for text in "abc"]
    given = await asyncio.gather(*calls)
    assert [one["content"][0]["text"][0] for one in given] == ["a", "b", "c"]
    assert await log_of(server) == ["client_credentials"] * 2


def check_servers() -> str:
    out = io.StringIO()
    with suppress(CommandError):
        call_command("check_mcp", stdout=out)
    return out.getvalue()


async def test_the_check_command_uses_the_stored_grant(
    start_runtime: Start,
    garden_auto: Session,
    server: HttpServer,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {"url": server.url, "oauth": own_account(server)}
    made = config(**{NAME: {"url": server.url}, "own": own})
    monkeypatch.setattr(settings.LOOM, "mcp", made)
    said = await sync_to_async(check_servers)()
    assert f"{NAME} (HTTP): failed. Sign-in required\n" in said
    assert "own (HTTP): ready\n    ask\n" in said
    made = config(**{NAME: {"url": server.url}})
    monkeypatch.setattr(settings.LOOM, "mcp", made)
    runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    await sign_in(runtime, garden_auto)
    said = await sync_to_async(check_servers)()
    assert f"{NAME} (HTTP): ready\n    ask\n" in said
