"""The command ``check_mcp``, which tries the configured tool servers."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from conversations.agent.mcp.config import McpConfig
from conversations.archive.workspaces import create_workspace
from tests.mcp_servers.running import config, plain
from tests.typist import someone_reading

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def garden(tmp_path: Path, user: User) -> str:
    return create_workspace(root=tmp_path, name="Plot", owner=user).slug


def check(monkeypatch: pytest.MonkeyPatch, settings: Any, made: McpConfig, *args: str) -> str:
    monkeypatch.setattr(settings.LOOM, "mcp", made)
    out = io.StringIO()
    try:
        call_command("check_mcp", *args, stdout=out)
    finally:
        said = out.getvalue()
        print(said)
    return said


def test_check_mcp_prints_the_tools_of_each_server(
    monkeypatch: pytest.MonkeyPatch, settings: Any, garden: str
) -> None:
    said = check(monkeypatch, settings, config(plain=plain("odd", tools=["echo", "large"])))
    assert said.splitlines() == [
        "plot:",
        "  plain (stdio): ready",
        "    echo",
        "    left out: large: its schema is too long (30\u202f037 characters).",
        "    left out: echo: another tool has the same name.",
    ]


def test_check_mcp_fails_if_a_server_does_not_respond(
    monkeypatch: pytest.MonkeyPatch, settings: Any, garden: str, capsys: Any
) -> None:
    with pytest.raises(CommandError, match="Some servers do not respond"):
        check(monkeypatch, settings, config(bad=plain("missing_library")), "--workspace", garden)
    assert (
        "bad (stdio): failed. It ended with exit code 1. Last output: Imp"
        in capsys.readouterr().out
    )


def test_a_servers_control_characters_are_escaped_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, settings: Any, garden: str
) -> None:
    bad = {"command": sys.executable, "args": ["-c", "raise SystemExit('gone\x1b[2J')"]}
    monkeypatch.setattr(settings.LOOM, "mcp", config(bad=bad))
    with someone_reading() as (typist, terminal):
        with pytest.raises(CommandError):
            call_command("check_mcp", stdout=terminal)
        typist.until(r"Last output: gone␛\[2J")


def test_check_mcp_names_the_file_if_no_server_is_configured(
    monkeypatch: pytest.MonkeyPatch, settings: Any, garden: str
) -> None:
    assert "mcp.json" in check(monkeypatch, settings, McpConfig())
    with pytest.raises(CommandError, match="This workspace does not exist"):
        check(monkeypatch, settings, config(plain=plain()), "--workspace", "nowhere")
