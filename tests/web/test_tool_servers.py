"""Tool servers on the pages: their state, and connecting one again."""

from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.test import AsyncClient

from conversations.agent.mcp.config import parse_config
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import add_member, create_workspace
from conversations.domain.people import VIEWER
from conversations.runtime.current import current_runtime
from tests.mcp_servers.running import plain, until
from tests.web.conftest import async_browser_of

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("runtime_ends"),
]


@pytest.fixture
def plot(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> tuple[User, Any]:
    """A user, and a session in a workspace with three servers.

    One server answers, one does not, and one is turned off.
    """
    made = parse_config(
        {
            "servers": {
                "good": plain("odd"),
                "bad": plain("missing_library"),
                "away": plain(),
            },
            "workspaces": {"plot": {"off": ["away"]}},
        },
        environment={},
    )
    monkeypatch.setattr(settings.LOOM, "mcp", made)
    user = User.objects.create_user("ann")
    workspace = create_workspace(root=tmp_path, name="Plot", owner=user)
    return user, create_session(workspace, owner=user)


async def read(client: AsyncClient, address: str) -> str:
    return (await client.get(address)).content.decode()


async def test_settings_show_the_state_of_servers_and_reconnect_one(
    plot: tuple[User, Any], tmp_path: Path
) -> None:
    user, session = plot
    client = await async_browser_of(user)
    before = await read(client, "/w/plot/settings/tools/")
    assert "<span>off</span>" in before
    assert "Starts when it is needed." in before
    assert "Turned off for this workspace." in before
    assert "Unavailable tool servers" not in await read(client, f"/s/{session.uuid}/")
    runtime = await current_runtime()
    await runtime.tool_servers.prepare("plot", tmp_path)
    states = {state.name: state for state in runtime.tool_servers.describe("plot")}
    await until(
        lambda: {"ready": 1, "failed": 1}.items() <= runtime.tool_servers.count_states().items()
    )
    html = await read(client, "/w/plot/settings/tools/")
    assert "<span>plain 1</span>" in html
    assert "Last output: ImportError: no library of that name" in html
    assert "bad_key: the model cannot use the argument &#x27;a b&#x27;." in html
    chat = await read(client, f"/s/{session.uuid}/")
    assert "Unavailable tool servers: bad." in chat
    assert 'href="/w/plot/settings/tools/">Show why</a>' in chat
    viewer = await User.objects.acreate(username="ben")
    await sync_to_async(add_member)(session.workspace, user_pk=viewer.pk, role=VIEWER)
    assert "Unavailable tool" not in await read(
        await async_browser_of(viewer), f"/s/{session.uuid}/"
    )
    since = states["good"].since
    response = await client.post("/w/plot/tool-servers/good/connect/", follow=True)
    assert "good: ready." in response.content.decode()
    [again] = [s for s in runtime.tool_servers.describe("plot") if s.name == "good"]
    assert again.since is not None
    assert since is not None
    assert again.since > since
    address, german = "/w/plot/tool-servers/good/connect/", {"Accept-Language": "de"}
    response = await client.post(address, follow=True, headers=german)
    assert "good: bereit." in response.content.decode()
    metrics = await read(client, "/metrics")
    assert "loom_tool_servers_ready 1.0" in metrics or "loom_tool_servers_ready 1" in metrics
    assert "loom_tool_servers_failed 1" in metrics
