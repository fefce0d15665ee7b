"""The ``discord`` command, up to its connection to Discord."""

import sys
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from conversations.models import Workspace
from tests.features.discord.discord_server import ANN

pytestmark = pytest.mark.django_db


@pytest.fixture
def configured(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    values: dict[str, Any] = {
        "discord_token": "t",
        "discord_workspace": workspace.slug,
        "discord_users": [f"{ANN}=ann"],
    }
    for name, value in values.items():
        monkeypatch.setattr(settings.LOOM, name, value)
    return monkeypatch


def refusal() -> str:
    with pytest.raises(CommandError) as caught:
        call_command("discord")
    assert caught.value.returncode == 2
    return str(caught.value)


def test_the_command_says_how_to_install_the_missing_extra(configured: pytest.MonkeyPatch) -> None:
    configured.setitem(sys.modules, "discord", None)
    assert "make extra NAME=discord" in refusal()


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("discord_token", "", "LOOM_DISCORD_TOKEN_FILE"),
        ("discord_workspace", "", "LOOM_DISCORD_WORKSPACE"),
        ("discord_workspace", "nowhere", "This workspace does not exist"),
        ("discord_users", [], "LOOM_DISCORD_USERS"),
        ("discord_users", [str(ANN)], "LOOM_DISCORD_ACCOUNT"),
        ("discord_users", ["*"], "LOOM_DISCORD_ACCOUNT"),
    ],
)
def test_the_command_names_the_missing_or_wrong_setting(
    configured: pytest.MonkeyPatch, setting: str, value: Any, says: str
) -> None:
    configured.setattr(settings.LOOM, setting, value)
    assert says in refusal()
