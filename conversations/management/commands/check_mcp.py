import asyncio
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from conversations.agent.mcp.config import McpConfig
from conversations.agent.mcp.connection import ConnectionTiming
from conversations.agent.mcp.servers import ServerState, ToolServers
from conversations.archive.workspaces import list_workspace_dirs
from conversations.management.base import DatabaseCommand, shown
from conversations.runtime.database import Database

TIMEOUT_SECONDS = 30.0


class Command(DatabaseCommand):
    help = "Connect to the configured tool servers and list their tools."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--workspace", metavar="SLUG", help="Only the servers of this workspace."
        )

    def handle(self, *, workspace: str | None, **_: Any) -> None:
        places = [place for place in list_workspace_dirs() if workspace in (None, place.workspace)]
        if workspace is not None and not places:
            raise CommandError("This workspace does not exist.", returncode=2)
        config = settings.LOOM.mcp
        if config.warning:
            self.stderr.write(config.warning)
        if config.is_empty:
            self.stdout.write(f"No tool servers: {settings.LOOM.mcp_config}")
            return
        states = asyncio.run(_connect(config, {p.workspace: p.root for p in places}))
        for slug, found in states.items():
            self.stdout.write(f"{slug}:")
            for state in found:
                head = f"{state.name} ({state.transport}): {state.state}. {state.reason}"
                lines = [f"  {head.rstrip('. ')}", *(f"    {tool}" for tool in state.tools)]
                lines += [f"    left out: {note}" for note in state.left_out]
                self.stdout.write(shown(self.stdout, "\n".join(lines)))
        if any(state.is_failed for found in states.values() for state in found):
            raise CommandError("Some servers do not respond.", returncode=1)


async def _connect(config: McpConfig, places: dict[str, Path]) -> dict[str, list[ServerState]]:
    database = Database(wait_seconds=0)
    servers = ToolServers(
        config,
        ConnectionTiming(wait=TIMEOUT_SECONDS, connect=TIMEOUT_SECONDS),
        read=database.readers.read,
        write=database.writer.write,
    )
    try:
        await asyncio.gather(*(servers.prepare(slug, root) for slug, root in places.items()))
        return {slug: servers.describe(slug) for slug in places}
    finally:
        await servers.stop()
        await database.close()
