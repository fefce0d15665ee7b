"""The optional package is loaded where it is asked for only."""

import ast
from pathlib import Path

from tests.test_layers import PRODUCT, imported_by, loaded_after

COMMAND = "conversations.features.discord.management.commands.discord"


def test_discord_is_loaded_by_its_own_command_only(tmp_path: Path) -> None:
    start = f"import loomweb.asgi, loomweb.urls, {COMMAND}"
    [modules] = loaded_after([start], tmp_path)
    assert COMMAND in modules
    assert "discord" not in modules
    importers = {path for path in PRODUCT if "discord" in imported_by(path, ast.walk)}
    assert {path.parent.name for path in importers} == {"discord"}
