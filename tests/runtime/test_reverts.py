"""An undo that its process did not finish is completed and reported by another process."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.agent.undo.apply import WriteAction, apply_changes
from conversations.agent.undo.records import ChangeScope, finish_revert, recent_reverts
from conversations.domain.errors import Rejected
from conversations.models import ChatEvent, FileChange, Session
from conversations.runtime.ownership import REVERTS_LOCK, share_lock
from conversations.runtime.service import Runtime
from tests.archive.turns import read_turns
from tests.changes.conftest import Calls, crossing, cut_short
from tests.runtime.conftest import Page

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def cut(garden: Session, tmp_path: Path) -> None:
    """Write a file by a call, and undo the call, but cut the undo short after the removal."""
    author = await sync_to_async(Calls(garden).author)()
    await apply_changes(tmp_path, [WriteAction(path="a", data=b"1")], author=author, write=crossing)
    await cut_short(garden, tmp_path, finish_revert)
    assert not (tmp_path / "a").exists()


async def settled(runtime: Runtime) -> int:
    """Return the number of rows once the runtime's background tasks have ended."""
    await asyncio.gather(*runtime.database.background, return_exceptions=True)
    return await ChatEvent.objects.acount()


async def test_an_undo_that_was_cut_short_is_reported_at_the_next_start(
    cut: None, start_runtime: Callable[..., Any], garden: Session
) -> None:
    assert await settled(await start_runtime()) == 1
    [note] = await sync_to_async(read_turns)(garden.pk)
    assert "The person did this, outside of any tool: a." in note.content
    assert len(await sync_to_async(recent_reverts)(garden.pk)) == 1
    assert await settled(await start_runtime()) == 1


async def test_a_running_undo_is_left_alone_and_completed_before_the_next_one(
    cut: None,
    start_runtime: Callable[..., Any],
    garden: Session,
    tmp_path: Path,
    open_page: Callable[[Runtime], Page],
) -> None:
    (tmp_path / "run").mkdir(exist_ok=True)
    async with share_lock(tmp_path / "run" / REVERTS_LOCK):  # as the executing process does
        runtime = await start_runtime()
        assert await settled(runtime) == 0
    page = open_page(runtime)
    with pytest.raises(Rejected, match="Nothing can be restored"):
        await runtime.revert_files(
            garden, tmp_path, scope=ChangeScope(), actor_pk=garden.owner_id, replace=()
        )
    await page.until(lambda: len(page.rows) == 1)
    assert not await FileChange.objects.filter(done_at=None).aexists()
