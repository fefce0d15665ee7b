"""Stories of a killed process whose file changes are recorded and can be undone."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conversations.models import Session

    from .kill_tools import Field, Story

FILES = 25
COMMAND = "echo 2 > a && rm gone && mkdir d && echo x > d/new && ln -s a link && chmod 700 sub"


def prepare(session: "Session") -> dict[str, Any]:
    """Create files in the session's folder and return a picture of the folder."""
    root = Path(session.workspace.root)
    (root / "sub").mkdir()
    for name in ("a", "gone", "sub/b"):
        (root / name).write_text("1\n")
    return picture_of(session)


def picture_of(session: "Session") -> dict[str, Any]:
    from tests.changes.conftest import picture

    return picture(Path(session.workspace.root))


async def crossing[T](function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    return await asyncio.to_thread(function, *args, **kwargs)


def undo_all(field: "Field", session: "Session", before: dict[str, Any]) -> None:
    """Undo all changes and check that the folder is as before, byte for byte."""
    from conversations.agent.undo.records import ChangeScope, unfinished_calls
    from conversations.agent.undo.revert import revert_files
    from conversations.domain.errors import Rejected

    field.wait("what was changed is known", lambda: not unfinished_calls())
    root = Path(session.workspace.root)
    work = revert_files(
        session, root, scope=ChangeScope(), actor_pk=None, replace=(), read=crossing, write=crossing
    )
    try:
        done = asyncio.run(work)
    except Rejected:
        pass  # the process was killed before it changed any file
    else:
        field.expect("nothing is left", done.left, {})
    field.expect("the folder", picture_of(session), before)


def while_a_command_changes_files(field: "Field") -> "Story":
    session = field.new_session("auto")
    before = prepare(session)
    command = json.dumps({"command": f"{COMMAND} && touch begun && sleep 60"})
    run = field.say(session, f"tool=shell_execute input={command}")
    field.wait("it begins", (Path(session.workspace.root) / "begun").exists)
    yield
    field.wait_state(run, "interrupted")
    undo_all(field, session, before)
    return session


def while_files_are_written(field: "Field") -> "Story":
    session = field.new_session("auto")
    before = prepare(session)
    calls = [
        {"name": "write_file", "input": {"path": f"new/{number}/x", "content": f"{number}\n"}}
        for number in range(FILES)
    ]
    calls.insert(3, {"name": "move_file", "input": {"source": "sub", "destination": "new/sub"}})
    run = field.say(session, f"tools={json.dumps(calls)}")
    field.wait("it begins", (Path(session.workspace.root) / "new/0/x").exists)
    sleep(field.random.uniform(0, 0.1))
    yield
    field.wait_state(run, "completed", "interrupted")
    undo_all(field, session, before)
    return session
