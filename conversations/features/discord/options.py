"""What the bot is configured with, as plain values."""

from dataclasses import dataclass

from django.conf import settings

from conversations.archive.workspaces import get_workspace
from conversations.models import Workspace

from .rules import DiscordRules


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordOptions:
    """``account`` is the name of the account that the bot acts by, empty: the workspace's
    owner. ``api`` and ``gateway`` are addresses in place of Discord's own."""

    token: str
    workspace: Workspace
    account: str
    rules: DiscordRules
    max_messages: int
    edit_seconds: float
    api: str
    gateway: str


def read_options() -> DiscordOptions:
    """As the settings have it. Raises NotFound for a workspace that is not there."""
    loom = settings.LOOM
    return DiscordOptions(
        token=loom.discord_token,
        workspace=get_workspace(loom.discord_workspace),
        account=loom.discord_account,
        rules=loom.discord,
        max_messages=loom.discord_max_messages,
        edit_seconds=loom.discord_edit_seconds,
        api=loom.discord_api,
        gateway=loom.discord_gateway,
    )
