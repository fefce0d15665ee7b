"""The optional package is loaded where it is asked for only."""

from pathlib import Path

from tests.test_layers import importers_of, loaded_after

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
    assert {path.parent.name for path in importers_of({"discord"})} == {"discord"}
