"""The optional package ``discord`` is loaded only where it is needed."""

from pathlib import Path

from tests.test_layers import importers_of, loaded_after

FEATURE = "conversations.features.discord"
COMMAND = f"{FEATURE}.management.commands.discord"


def test_the_discord_package_is_loaded_only_by_a_running_command(tmp_path: Path) -> None:
    """Other code does not import the feature (see ``tests/features``)."""
    start = (
        "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'loomweb.settings'; import django;"
        f" django.setup(); import {COMMAND}, {FEATURE}.admin"
    )
    [modules] = loaded_after([start], tmp_path)
    assert {COMMAND, f"{FEATURE}.models"} <= modules
    assert "discord" not in modules
    assert {path.parent.name for path in importers_of({"discord"})} == {"discord"}
