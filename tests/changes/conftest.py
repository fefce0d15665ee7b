"""Helpers for tool calls in a workspace's folder and for comparing the folder's contents."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.utils import timezone

from conversations.agent.undo.disk import ChangeAuthor
from conversations.agent.undo.records import ChangeScope
from conversations.agent.undo.revert import revert_files
from conversations.agent.undo.trees import FolderWatch, watched
from conversations.archive.sessions import create_session
from conversations.models import Run, Session, ToolCall, Workspace


async def crossing[T](function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call an archive function on the test's own thread, in its transaction.

    It may be used only in code that ``async_to_sync`` runs.
    """
    return await sync_to_async(function)(*args, **kwargs)


class Calls:
    """A factory of the runs and tool calls to which changes belong."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def make_run(self) -> Run:
        number = Run.objects.count() + 1
        return Run.objects.create(
            session=self.session,
            client_id=f"c{number}",
            state="completed",
            created_at=timezone.now(),
        )

    def make_call(self, *, run: Run | None = None, state: str = "completed") -> ToolCall:
        number = ToolCall.objects.count() + 1
        return ToolCall.objects.create(
            session=self.session,
            run=run or self.make_run(),
            call_id=f"t{number}",
            name="shell_execute",
            state=state,
            turn_number=number,
            created_at=timezone.now(),
            started_at=timezone.now(),
        )

    def author(self, call: ToolCall | None = None) -> ChangeAuthor:
        call = call or self.make_call()
        return ChangeAuthor(session_pk=call.session_id, run_pk=call.run_id, call_pk=call.pk)


def command(
    root: Path, calls: Calls, work: Callable[[], object], call: ToolCall | None = None
) -> FolderWatch:
    """Run a function as if it were a command of a call."""

    author = calls.author(call)

    async def run() -> FolderWatch:
        async with watched(root, author=author, write=crossing) as watch:
            work()
        return watch

    return async_to_sync(run)()


class Killed(Exception):
    pass


async def cut_short(session: Session, root: Path, at: Callable[..., Any], **scope: Any) -> None:
    """Revert as in a process that dies right before it calls ``at``."""
    is_dead = False

    async def write(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal is_dead
        is_dead = is_dead or function is at
        if is_dead:
            raise Killed
        return await crossing(function, *args, **kwargs)

    with pytest.raises(Killed):
        await revert_files(
            session,
            root,
            scope=ChangeScope(**scope),
            actor_pk=session.owner_id,
            replace=(),
            read=crossing,
            write=write,
        )


@pytest.fixture
def calls(session: Session) -> Calls:
    return Calls(session)


@pytest.fixture
def other_session(workspace: Workspace, user: User) -> Session:
    return create_session(workspace, owner=user)


@pytest.fixture
def root(workspace: Workspace) -> Path:
    return Path(workspace.root)


def picture(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return every entry of the folder with its mode and its content or link target."""
    found: dict[str, tuple[int, bytes]] = {".": (root.stat().st_mode, b"")}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            content = b""
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif stat.S_ISREG(mode):
                content = Path(os.fsdecode(path)).read_bytes()
            found[os.fsdecode(os.path.relpath(path, os.fsencode(root)))] = (mode, content)
    return found
