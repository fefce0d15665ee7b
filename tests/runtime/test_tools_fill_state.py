"""Tool calls fill the session state without the model's help."""

import os
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.agent.sandbox.support import find_support
from conversations.archive.session_state import read_state_view
from conversations.domain.session_state import ERROR, FILE
from conversations.models import Session, Workspace
from conversations.runtime.service import Runtime
from tests.runtime.conftest import ask
from tests.runtime.tool_stories import answers, results
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def project(garden: Session, tmp_path: Path) -> Path:
    Workspace.objects.update(tool_policy="auto")
    root = tmp_path / "project"
    root.mkdir()
    Workspace.objects.update(root=str(root))
    for name in ("README.md", "old.txt", "gone.txt"):
        (root / name).write_text("words\n")
    return root


async def state_of(session: Session, kind: str) -> list[tuple[str, str]]:
    view = await sync_to_async(read_state_view)(session.pk)
    return [(item.action, item.text) for item in view.items if item.kind == kind]


async def carry_out(
    runtime: Runtime, wire: WireThread, session: Session, *calls: tuple[str, dict[str, Any]]
) -> None:
    """Let the model make each call in an answer of its own."""
    count = len(wire.requests)
    for number, call in enumerate(calls):
        wire.enqueue(answers(call, prefix=f"toolu_{count}_{number}")[0])
    wire.enqueue(answers()[1])
    await ask(runtime, session, f"Go on after {count}.")


async def test_the_state_lists_changed_files_with_the_last_action(
    runtime: Runtime, wire: WireThread, garden: Session, project: Path
) -> None:
    await carry_out(
        runtime,
        wire,
        garden,
        ("read_file", {"path": "README.md"}),
        ("write_file", {"path": "src/app.py", "content": "x = 1\n"}),
        ("write_file", {"path": "./README.md", "content": "other words\n"}),
        ("move_file", {"source": "old.txt", "destination": "new.txt"}),
        ("delete_file", {"path": "gone.txt"}),
        ("edit_file", {"path": "src/app.py", "old_text": "y = 1", "new_text": "y = 2"}),
        ("read_file", {"path": "../outside.txt"}),
    )
    assert sorted(os.listdir(project)) == ["README.md", "new.txt", "src"]
    assert sorted(await state_of(garden, FILE)) == [
        ("created", "src/app.py"),
        ("deleted", "gone.txt"),
        ("edited", "README.md"),
        ("moved", "new.txt"),
    ]
    assert await state_of(garden, ERROR) == []


@pytest.mark.skipif(not find_support().bwrap, reason="no sandbox here")
async def test_an_error_is_resolved_when_the_command_later_succeeds(
    runtime: Runtime, wire: WireThread, garden: Session, project: Path
) -> None:
    (project / "app.sh").write_text("echo no soil >&2; exit 3\n")
    await carry_out(
        runtime,
        wire,
        garden,
        ("shell_execute", {"command": "sh app.sh"}),
        ("write_file", {"path": "app.sh", "content": "echo growing\n"}),
        ("shell_execute", {"command": "sh app.sh"}),
    )
    assert "growing" in (await results(garden))[-1]
    [(_, error)] = await state_of(garden, ERROR)
    assert "no soil" in error
    assert await state_of(garden, FILE) == [("edited", "app.sh")]
