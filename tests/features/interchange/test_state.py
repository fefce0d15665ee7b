"""The state of a session that was exported and imported."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from hypothesis import given
from hypothesis import strategies as st

from conversations.archive.session_state import (
    check_state,
    edit_state,
    read_state_text,
    read_state_view,
    rebuild_state_text,
)
from conversations.archive.sessions import create_session, get_session
from conversations.features.interchange.export import session_lines
from conversations.features.interchange.import_sessions import ImportCounts, import_file
from conversations.features.interchange.import_targets import ImportTarget
from conversations.models import Session, Workspace
from tests.archive.state_story import answer, message, used, write
from tests.archive.test_state_rebuild import Life, step
from tests.properties import costly

pytestmark = pytest.mark.django_db


@costly
@given(steps=st.lists(step, min_size=1, max_size=14))
def test_a_copy_of_any_session_has_the_same_state(
    workspace: Workspace, user: User, tmp_path: Path, steps: list[Any]
) -> None:
    life = Life(create_session(workspace, owner=user))
    for kind, value in steps:
        life.live(kind, value)
    assert_copy_is_the_same(life.session, user, tmp_path)


def assert_copy_is_the_same(session: Session, user: User, root: Path) -> None:
    """Assert that a copy, imported under another uuid, has the state of the session."""
    session = get_session(session.uuid)
    copy = create_session(session.workspace, owner=user)
    lines = [json.loads(line) for line in session_lines(session)]
    lines[0]["uuid"] = str(copy.uuid)
    text = "\n".join(json.dumps(line) for line in lines)
    target = ImportTarget(default_owner=user, root=root)
    import_file(BytesIO(text.encode()), target=target, counts=ImportCounts(), report=print)
    copied = get_session(copy.uuid)
    assert (copied.state, copied.state_turn) == (session.state, session.state_turn)
    assert check_state(copy.pk) == ""


def test_edits_and_strikes_follow_their_items_in_renumbered_turns(
    session: Session, user: User, tmp_path: Path
) -> None:
    write(session, message("We decided on Postgres"), answer(), message("Always use tabs."))
    write(session, message("The response time is now 250 ms."), message("Never use eval."))
    write(session, message("The budget is now 300 euros."), message("Go on"))
    for action, item in (("edit", "r3.0"), ("pin", "v4.0"), ("pin", "d1.0"), ("strike", "r5.0")):
        edit_state(session, actor_pk=None, action=action, item=item, text="Always wrap lines")
    output = "Struck v6.0: budget is now 300 euros"
    write(session, *used("session_state", {"action": "strike"}, output))
    lines = [json.loads(line) for line in session_lines(get_session(session.uuid))]
    left = [line for line in lines if line["type"] != "turn" or line["number"] not in (1, 2)]
    copy = create_session(session.workspace, owner=user)
    left[0]["uuid"] = str(copy.uuid)
    text = "\n".join(map(json.dumps, left)).encode()
    target = ImportTarget(default_owner=user, root=tmp_path)
    for _ in range(2):
        counts = ImportCounts()
        import_file(BytesIO(text), target=target, counts=counts, report=print)
    assert (counts.conflicts, counts.turns_added, counts.events_added) == (0, 0, 0)
    view = read_state_view(copy.pk)
    items = [(item.id, item.text, item.is_pinned) for item in view.items if item.kind != "focus"]
    assert items == [
        ("d0.1.0", "We decided on Postgres", True),  # from a turn that is not imported
        ("r1.0", "Always wrap lines", False),
        ("v2.0", "response time is now 250 ms", True),
    ]
    struck = [(item.id, item.text, item.struck_by) for item in view.struck]
    assert struck == [
        ("r3.0", "Never use eval", "person"),
        ("v4.0", "budget is now 300 euros", "model"),
    ]
    assert check_state(copy.pk) == ""


def test_rewinds_in_imported_files_may_come_in_any_order(
    session: Session, user: User, tmp_path: Path
) -> None:
    write(session, *(message(f"We decided to plant row {n}") for n in range(1, 250)))
    lines = [*session_lines(session)]
    for low, high in ((240, 245), (3, 120), (200, 201)):
        rewind = {"from_turn": low, "to_turn": high, "from_seq": 1, "to_seq": 0}
        lines.append(json.dumps({"type": "rewind", "reason": "edit", **rewind}))
    copy = create_session(session.workspace, owner=user)
    lines[0] = json.dumps(json.loads(lines[0]) | {"uuid": str(copy.uuid)})
    target = ImportTarget(default_owner=user, root=tmp_path)
    import_file(
        BytesIO("\n".join(lines).encode()), target=target, counts=ImportCounts(), report=print
    )
    assert check_state(copy.pk) == ""
    found = [item.turn for item in read_state_view(copy.pk).items if item.kind == "decision"]
    assert found == [234, 235, 236, 237, 238, 239, 246, 247, 248, 249]
    now = read_state_text(copy.pk)
    assert rebuild_state_text(copy.pk, turn=now.turn, seq=now.seq, rewinds=3) == now
    half = rebuild_state_text(copy.pk, turn=150, seq=now.seq, rewinds=2)
    assert 'row 150"' in half.yaml
    assert "(turn 121)" not in half.yaml
    assert "(turn 2)" not in half.yaml
    early = rebuild_state_text(copy.pk, turn=122, seq=now.seq, rewinds=2)
    assert early.yaml.count("(turn ") == 4
