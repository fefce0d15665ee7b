"""Signing in at a tool server from the settings of a workspace."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from tests.e2e.accessibility import violations_everywhere
from tests.e2e.conftest import Server, sign_in, start_ordinary, wait_until
from tests.mcp_servers.running import HttpServer
from tests.wire.server import WireThread


@pytest.fixture(scope="module")
def tool_server() -> Iterator[HttpServer]:
    with HttpServer("oauth_server.py") as running:
        yield running


@pytest.fixture(scope="module")
def server(
    make_server: Callable[..., Server],
    provider: WireThread,
    tool_server: HttpServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Server:
    file: Path = tmp_path_factory.mktemp("mcp") / "mcp.json"
    file.write_text(json.dumps({"servers": {"tickets": {"url": tool_server.url}}}))
    return start_ordinary(make_server, provider, LOOM_MCP_CONFIG=str(file))


@pytest.fixture(scope="module")
def signed_in_state(browser: Browser, server: Server) -> Any:
    return sign_in(browser, server)


def test_a_person_can_sign_in_and_out_at_a_tool_server(
    server: Server, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context().new_page()
    settings = f"{server.url}/w/example/settings/tools/"
    page.goto(settings)
    wait_until(lambda: "connecting" not in page.request.get(settings).text())
    page.reload()
    card = page.get_by_role("region", name="Tool servers")
    expect(card).to_contain_text("Sign-in needed")
    card.get_by_role("button", name="Sign in to tickets").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to tickets")
    expect(page.get_by_text("every workspace")).to_be_visible()
    assert violations_everywhere(page, "tool-server-sign-in") == []
    page.get_by_role("link", name=re.compile("^Continue to 127")).click()
    expect(page).to_have_url(settings)
    expect(page.get_by_text("Signed in to tickets.")).to_be_visible()
    expect(card).to_contain_text(re.compile("HTTP, ready.*Signed in by", re.DOTALL))
    assert violations_everywhere(page, "tool-server-signed-in") == []
    card.get_by_role("button", name="Sign out of tickets").click()
    expect(page.get_by_text("Signed out of tickets.")).to_be_visible()
    expect(card).to_contain_text("Sign-in needed")
