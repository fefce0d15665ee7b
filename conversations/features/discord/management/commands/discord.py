"""Runs the bot for Discord, beside the server or without one."""

import asyncio
from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from conversations.archive.workspaces import get_workspace
from conversations.domain.errors import LoomError
from conversations.features.discord.options import read_options, read_rules
from conversations.management.base import DatabaseCommand
from conversations.runtime.options import read_options as read_runtime_options


class Command(DatabaseCommand):
    help = "Answer people on Discord (see docs/discord.md)."

    def handle(self, **options: Any) -> None:
        _check()
        from conversations.features.discord.worker import serve

        try:
            asyncio.run(serve(read_options(), read_runtime_options(supervise=False)))
        except LoomError as error:
            raise CommandError(error.message) from error


def _check() -> None:
    """Everything that can be said before a connection is made, in one sentence each."""
    loom = settings.LOOM
    if find_spec("discord") is None:
        raise CommandError(
            "This needs discord.py, which is not installed. "
            "Install it with: uv sync --extra discord",
            returncode=2,
        )
    if not loom.discord_token:
        raise CommandError(
            "Set LOOM_DISCORD_TOKEN or LOOM_DISCORD_TOKEN_FILE. See docs/discord.md.",
            returncode=2,
        )
    if not loom.discord_workspace:
        raise CommandError(
            "Set LOOM_DISCORD_WORKSPACE to the slug of a workspace. See docs/discord.md.",
            returncode=2,
        )
    rules = read_rules()
    if not rules.people and not rules.everybody:
        raise CommandError(
            "Nobody may talk to the bot: set LOOM_DISCORD_USERS. See docs/discord.md.",
            returncode=2,
        )
    if not loom.discord_account and rules.lets_in_strangers:
        raise CommandError(
            "People without an account may talk to the bot: set LOOM_DISCORD_ACCOUNT to the "
            "account by which they act. See docs/discord.md.",
            returncode=2,
        )
    try:
        get_workspace(loom.discord_workspace)
    except LoomError as error:
        raise CommandError(f"LOOM_DISCORD_WORKSPACE: {error.message}", returncode=2) from error
