"""A killed process leaves nothing unanswered, and nothing answered twice."""

from pathlib import Path

import pytest
from django.db import connection

from conversations.models import Workspace
from tests.features.discord.kill_discord import play
from tests.starting import Starts


@pytest.mark.skipif(connection.vendor != "sqlite", reason="the process gets a file")
async def test_a_killed_bot_goes_on_where_it_died(
    tmp_path: Path, garden: Workspace, starts: Starts
) -> None:
    database = Path(connection.settings_dict["NAME"])
    killing = await play(tmp_path, rounds=1, seed=3, database=database, popen=starts.popen)
    assert len(killing.endings()) == len(killing.said) == 6
    assert killing.problems() == []
