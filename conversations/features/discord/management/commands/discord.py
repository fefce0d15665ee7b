"""The command that runs the Discord bot, with or without a server beside it."""

import asyncio
from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from conversations.archive.workspaces import get_workspace
from conversations.domain.errors import LoomError
from conversations.features.discord.options import read_rules
from conversations.management.base import DatabaseCommand
from conversations.runtime.options import read_options


class Command(DatabaseCommand):
    help = "Answer people on Discord (see docs/discord.md)."

    def handle(self, **options: Any) -> None:
        if problem := _find_problem():
            raise CommandError(problem, returncode=2)
        from conversations.features.discord.worker import serve

        try:
            workspace = get_workspace(settings.LOOM.discord_workspace)
            asyncio.run(serve(workspace, read_rules(), read_options(supervise=False)))
        except LoomError as error:
            raise CommandError(error.message) from error


def _find_problem() -> str:
    """Return an error message for bad or missing settings, or "" if the bot can start."""
    loom, rules = settings.LOOM, read_rules()
    if find_spec("discord") is None:
        return "discord.py is not installed. Install it with: make extra NAME=discord"
    if not loom.discord_token:
        return "Set LOOM_DISCORD_TOKEN or LOOM_DISCORD_TOKEN_FILE. See docs/discord.md."
    if not loom.discord_workspace:
        return "Set LOOM_DISCORD_WORKSPACE to the slug of a workspace. See docs/discord.md."
    if not rules.people and not rules.everybody:
        return "Nobody is allowed to use the bot: set LOOM_DISCORD_USERS. See docs/discord.md."
    if not loom.discord_account and rules.admits_strangers:
        return (
            "People without an account may use the bot: set LOOM_DISCORD_ACCOUNT to the "
            "account for them. See docs/discord.md."
        )
    try:
        get_workspace(loom.discord_workspace)
    except LoomError as error:
        return f"LOOM_DISCORD_WORKSPACE: {error.message}"
    return ""
