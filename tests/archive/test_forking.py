"""Forks: sessions that begin as a copy of another session."""

from bisect import bisect_right
from typing import Any

import pytest
from django.contrib.auth.models import User
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conversations.agent.window.window import WindowSpec, assemble_window
from conversations.archive.append import append
from conversations.archive.asides import make_marker
from conversations.archive.attachments import save_attachment
from conversations.archive.context import append_loaded_skill, read_loaded_skills
from conversations.archive.forking import (
    fork_session,
    read_hidden_beside,
    read_state_moment,
)
from conversations.archive.messages import accept_message, edit_message, rewind_session
from conversations.archive.rewinds import append_rewind
from conversations.archive.session_state import (
    active_turns,
    check_state,
    edit_state,
    read_state_at,
    read_state_text,
    read_state_view,
)
from conversations.archive.sessions import create_session, get_session
from conversations.archive.transcript import read_page
from conversations.archive.verify import verify_session
from conversations.domain.errors import NotFound
from conversations.domain.session_state import StateItem, list_items
from conversations.domain.turns import NewTurn
from conversations.domain.windows import WindowRules
from conversations.models import Session, Workspace
from tests.archive.turns import read_turns
from tests.properties import costly

from .files import send_file
from .state_story import answer, calls, message, result, used, write

pytestmark = pytest.mark.django_db


def contents(session: Session) -> list[str]:
    return [turn.content for turn in read_turns(session.pk)]


def test_fork_copies_turns_and_state_and_continues_alone(
    session: Session, user: User, other_user: User
) -> None:
    write(session, message("We use tabs"), answer(), message("And peas?"), answer())
    full = get_session(session.uuid)
    made = fork_session(full, turn=2, owner=other_user)
    assert (made.parent_id, made.fork_turn, made.owner) == (session.pk, 2, other_user)
    assert contents(made) == contents(full)[:2]
    assert "tabs" in read_state_text(made.pk).yaml
    write(made, message("Only here"))
    assert contents(get_session(session.uuid)) == contents(full)
    assert verify_session(get_session(made.uuid)).problem == ""
    shown = [row.html for row in read_page(get_session(made.uuid), limit=50).rows]
    assert "We use tabs" in shown[0]
    for turn in (0, 5):
        with pytest.raises(NotFound):
            fork_session(full, turn=turn, owner=user)


def test_fork_copies_tool_results_and_the_path_of_its_turn(session: Session, user: User) -> None:
    write(session, message("Look"), calls(("read_file", {"path": "a"})), result("A"), answer())
    rewind_session(get_session(session.uuid), from_turn=1, actor_pk=None)
    write(session, message("Other"), answer())
    full = get_session(session.uuid)
    assert contents(fork_session(full, turn=2, owner=user)) == contents(full)[:3]
    assert contents(fork_session(full, turn=6, owner=user)) == ["Other", "Done."]


def test_turns_put_aside_are_not_copied(session: Session, user: User) -> None:
    write(session, message("Always answer in German."), message("Never use tabs in Python files."))
    marker, notice = make_marker(1, 1, is_aside=True)
    append(session.pk, session_uuid=session.uuid, turns=[marker], events=[notice])
    struck = "Struck r1.0: Always answer in German"
    write(session, *used("session_state", {"action": "strike"}, struck), message("Go on"))
    made = fork_session(get_session(session.uuid), turn=6, owner=user)
    assert contents(made)[0] == "Never use tabs in Python files."
    # The model struck r1.0 of the session, which is from the turn that is not copied.
    assert "Never use tabs in Python files" in read_state_text(made.pk).yaml


def test_turns_put_aside_are_not_copied_from_a_left_branch(session: Session, user: User) -> None:
    write(session, message("Hello"), answer(), message("Bad"))
    marker, notice = make_marker(3, 3, is_aside=True)
    append(session.pk, session_uuid=session.uuid, turns=[marker], events=[notice])
    write(session, message("Good"), answer("Fine."))
    edit_message(
        get_session(session.uuid), client_id="edit-1", turn=5, text="Better", user_pk=user.pk
    )
    made = fork_session(get_session(session.uuid), turn=6, owner=user)
    assert contents(made) == ["Hello", "Done.", "Good", "Fine."]


def test_fork_of_a_left_branch_copies_turns_put_aside_later(session: Session, user: User) -> None:
    write(session, message("Hello"), answer(), message("Good"), answer("Fine."))
    rewind_session(get_session(session.uuid), from_turn=3, actor_pk=None)
    marker, notice = make_marker(1, 1, is_aside=True)
    append(session.pk, session_uuid=session.uuid, turns=[marker], events=[notice])
    made = fork_session(get_session(session.uuid), turn=4, owner=user)
    assert contents(made) == ["Hello", "Done.", "Good", "Fine."]


def test_only_the_last_turns_of_a_long_session_are_copied(
    session: Session, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 700
    monkeypatch.setattr("conversations.archive.forking.MAX_COPIED_TURNS", most)
    turns = [
        NewTurn(role="assistant" if number % 2 else "user", content=f"Row {number + 1}")
        for number in range(most + 501)
    ]
    append(session.pk, session_uuid=session.uuid, turns=turns)
    loads = (("Water", 6), ("Water twice", 40), ("Prune", 600), ("Later", most + 501))
    for text, turn in loads:
        append_loaded_skill(session.pk, name=text[:5], path="p", content=text, turn=turn)
    made = fork_session(get_session(session.uuid), turn=most + 500, owner=user)
    assert made.turn_count == most
    assert contents(made)[0] == "Row 501"
    loaded = [(skill.content, skill.turn_number) for skill in read_loaded_skills(made.pk)]
    assert loaded == [("Water twice", 1), ("Prune", 100)]
    assert verify_session(get_session(made.uuid)).problem == ""
    # A skill is not added if the window holds the call that loaded it.
    assert window_of(made, limit=1_000_000) == (1, ["Water"])
    floor, told = window_of(made, limit=3_000)
    assert floor > 100
    assert told == ["Water", "Prune"]


def window_of(session: Session, *, limit: int) -> tuple[int, list[str]]:
    """Return the first turn of the window and the names of the skills that are added to it."""
    wish = WindowSpec(
        session_pk=session.pk,
        floor=1,
        rewinds=0,
        model="demo",
        system="",
        tools="[]",
        limit=limit,
        max_output=1_000,
        ratio=1.0,
        rules=WindowRules(),
    )
    window = assemble_window(wish)
    skills = session.skills.filter(pk__in=window.decisions["skills"])
    return window.floor, [skill.name for skill in skills]


def test_fork_copies_attachments_and_stores_their_content_once(
    session: Session, user: User
) -> None:
    file = save_attachment(session.pk, data=b"beans", name="b.txt", user_pk=user.pk)
    accept_message(
        session,
        client_id="client-1",
        text="Look",
        user_pk=user.pk,
        max_queued=3,
        attachments=[str(file.uuid)],
    )
    made = fork_session(get_session(session.uuid), turn=1, owner=user)
    copied = made.attachments.get()
    assert (copied.digest, copied.turn_number) == (file.digest, 1)
    assert copied.uuid != file.uuid
    [turn] = read_turns(made.pk)
    assert str(copied.uuid) in str(turn.blocks)
    assert str(file.uuid) not in str(turn.blocks)


@pytest.mark.parametrize("how", ["edited", "sent again"])
def test_fork_copies_a_file_that_an_earlier_turn_has_attached(
    session: Session, user: User, how: str
) -> None:
    file = save_attachment(session.pk, data=b"beans", name="b.txt", user_pk=user.pk)
    send_file(session, file)
    if how == "edited":
        edit_message(
            get_session(session.uuid), client_id="edit-1", turn=1, text="Again", user_pk=user.pk
        )
    else:
        rewind_session(get_session(session.uuid), from_turn=1, actor_pk=None)
        send_file(session, file, client_id="client-2")
    made = fork_session(get_session(session.uuid), turn=2, owner=user)
    copied = made.attachments.get()
    assert (copied.digest, copied.turn_number) == (file.digest, 1)
    [turn] = read_turns(made.pk)
    assert str(copied.uuid) in str(turn.blocks)


def test_fork_keeps_struck_pinned_and_reworded_items(session: Session, user: User) -> None:
    write(
        session,
        *(message("Before"), answer()),
        *(message("Always use tabs for indentation."), answer()),
        *(message("Never push to main."), answer()),
        *(message("We decided to use Postgres."), answer()),
        *(message("Always answer in German."), answer()),
    )

    def edit(action: str, text: str, wording: str = "") -> None:
        items = [one for one in read_state_view(session.pk).items if one.kind != "focus"]
        [item] = [one for one in items if text in one.text]
        edit_state(session, actor_pk=user.pk, action=action, item=item.id, text=wording)

    edit("strike", "tabs")
    edit("edit", "main", "Push to main only after review")
    edit("pin", "main only")
    edit("pin", "Postgres")
    write(session, message("Go on"), answer())
    edit("strike", "German")  # After the last turn that is copied
    rewind_session(get_session(session.uuid), from_turn=11, actor_pk=None)
    full = get_session(session.uuid)
    marker, notice = make_marker(1, 2, is_aside=True)
    append(session.pk, session_uuid=session.uuid, turns=[marker], events=[notice])
    made = get_session(fork_session(full, turn=10, owner=user).uuid)
    view = read_state_view(made.pk)
    shown = {item.text: item for item in view.items}
    assert "Always use tabs for indentation" not in shown
    assert [item.text for item in view.struck] == ["Always use tabs for indentation"]
    reworded, decided = shown["Push to main only after review"], shown["We decided to use Postgres"]
    assert (reworded.original, reworded.is_pinned) == ("Never push to main", True)
    assert (reworded.turn, decided.turn, decided.is_pinned) == (3, 5, True)
    assert "Never push to main" not in shown
    assert "Always answer in German" in shown
    assert (check_state(made.pk), verify_session(made).problem) == ("", "")
    [first, *_] = read_page(made, limit=50).rows
    assert "Always use tabs" in first.html


def test_pinned_items_outlive_turns_that_are_not_copied(
    session: Session, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(session, message("Always use tabs for indentation."), answer())
    write(session, message("Never push to main."), answer())
    items = read_state_view(session.pk).items
    [pinned] = [item for item in items if "tabs" in item.text]
    edit_state(session, actor_pk=user.pk, action="pin", item=pinned.id)
    write(session, message("Always answer in German."), answer())
    monkeypatch.setattr("conversations.archive.forking.MAX_COPIED_TURNS", 2)
    made = fork_session(get_session(session.uuid), turn=6, owner=user)
    rules = {item.text: item.is_pinned for item in read_state_view(made.pk).items}
    assert rules["Always use tabs for indentation"] is True
    assert "Never push to main" not in rules
    assert check_state(made.pk) == ""


RULES = (
    "Always answer in German.",
    "Always answer in English.",
    "Never use tabs in Python files.",
    "Always add a summary at the end.",
    "Never add a summary at the end.",
    "I prefer short answers over long ones.",
    "We decided to use Postgres.",
    "The deadline is now March 5.",
    "Go on with the parser",
)
STRIKE = "strike by the model"
ACTIONS = ("pin", "unpin", "strike", "unstrike", "edit", STRIKE, STRIKE)
edit = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 9), st.sampled_from(RULES))
step = st.one_of(
    *(st.sampled_from(RULES), st.sampled_from(RULES), edit, edit),
    st.integers(1, 5),  # Number of turns to rewind
)


def live(session: Session, steps: list[Any]) -> None:
    for one in steps:
        if isinstance(one, str):
            write(session, message(one), answer())
            continue
        full = get_session(session.uuid)
        if isinstance(one, int):
            first = max(1, full.turn_count - one)
            append_rewind(full, from_turn=first, from_seq=None, reason="edit", actor_pk=None)
            continue
        action, place, wording = one
        view = read_state_view(session.pk)
        wanted = "strike" if action == STRIKE else action
        items = [item for item in (*view.items, *view.struck) if wanted in item.actions]
        if action == STRIKE:
            items = [item for item in items if item.id[0] in "drpv" and not item.is_pinned]
        if not items:
            continue
        item = items[place % len(items)]
        if action == STRIKE:
            output = f"Struck {item.id}: {item.text}"
            write(session, *used("session_state", {"action": "strike"}, output), answer())
        else:
            edit_state(session, actor_pk=None, action=action, item=item.id, text=wording)


@settings(costly, max_examples=costly.max_examples // 3)
@example(steps=[*RULES[0:3:2], (STRIKE, 0, "")], back=0)
@example(steps=[*RULES[0:3:2], ("edit", 0, RULES[3]), (STRIKE, 0, "")], back=0)
@example(steps=[RULES[0], ("strike", 0, ""), RULES[0]], back=0)
@given(steps=st.lists(step, min_size=4, max_size=14), back=st.integers(0, 3))
def test_fork_has_the_state_of_the_turn_at_which_it_is_made(
    workspace: Workspace, user: User, steps: list[Any], back: int
) -> None:
    session = create_session(workspace, owner=user)
    live(session, ["Hello", 1, *steps])  # Rewind first, so that the fork's numbers differ
    full = get_session(session.uuid)
    turns = read_turns(session.pk)
    # A fork at a tool call copies the result too, so fork only at messages and answers.
    ends = [turn.number for turn in turns if turn.role == "user" or turn.content == "Done."]
    if not ends:
        return
    turn = ends[-1 - back % len(ends)]
    gone = read_hidden_beside(full, turn)
    numbers = [one.number for one in active_turns(session.pk, 0, turn, gone)]

    def told(items: tuple[StateItem, ...]) -> list[StateItem]:
        """Return the items without ids and with their turns' numbers in the fork."""
        return sorted(
            item._replace(
                id="",
                turn=bisect_right(numbers, item.turn),
                replaced_in=bisect_right(numbers, item.replaced_in),
            )
            for item in items
        )

    state = read_state_at(session.pk, read_state_moment(session.pk, turn))
    wanted = [told(items) for items in list_items(state)]
    made = fork_session(full, turn=turn, owner=user)
    numbers = list(range(1, made.turn_count + 1))
    view = read_state_view(made.pk)
    assert [told(view.items), told(view.struck)] == wanted
    assert check_state(made.pk) == ""
