"""The optional package is loaded where it is asked for only."""

import ast
from pathlib import Path

from tests.test_layers import PRODUCT, imported_by, loaded_after

FEATURE = "conversations.features.discord"
COMMAND = f"{FEATURE}.management.commands.discord"


def test_discord_is_loaded_by_its_own_command_only(tmp_path: Path) -> None:
    """Nothing else imports the feature (see ``tests/features``)."""
    start = (
        "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'loomweb.settings'; import django;"
        f" django.setup(); import {COMMAND}, {FEATURE}.admin"
    )
    [modules] = loaded_after([start], tmp_path)
    assert {COMMAND, f"{FEATURE}.models"} <= modules
    assert "discord" not in modules
    named = [path for path in PRODUCT if "discord" in path.read_text()]
    importers = {path for path in named if "discord" in imported_by(path, ast.walk)}
    assert {path.parent.name for path in importers} == {"discord"}
