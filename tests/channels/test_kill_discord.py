"""A killed process leaves nothing unanswered, and nothing answered twice."""

from pathlib import Path

from tests.channels.kill_discord import play


async def test_a_killed_bot_goes_on_where_it_died(tmp_path: Path) -> None:
    killing = await play(tmp_path, rounds=1, seed=3)
    assert len(killing.endings()) == len(killing.said) == 6
    assert killing.problems() == []
