"""The stored session state: correct after every commit, edit and rewind."""

from typing import Any

import pytest
import yaml
from django.contrib.auth.models import User
from django.db import connection

from conversations.archive.rewinds import append_rewind
from conversations.archive.session_state import (
    check_state,
    edit_state,
    read_state_text,
    read_state_view,
    rebuild_state_text,
)
from conversations.archive.state_updates import read_facts_of
from conversations.domain.errors import NotFound, Rejected, TooLarge, Unavailable
from conversations.domain.session_state import MAX_REPLACED
from conversations.domain.turns import NewTurn
from conversations.models import ChatEvent, Session, StateCheckpoint
from conversations.rendering.messages import fill_marks

from .state_story import answer, message, used, write

pytestmark = pytest.mark.django_db


def state_of(session: Session) -> Any:
    return yaml.safe_load(read_state_text(session.pk).yaml)


def ids(session: Session, kind: str) -> list[str]:
    return [item.id for item in read_state_view(session.pk).items if item.kind == kind]


def act(session: Session, action: str, text: str, *, wording: str = "") -> None:
    """Edit the rule or decision that begins with this text."""
    found = [one for one in read_state_view(session.pk).items if one.kind in ("rule", "decision")]
    [item] = [one for one in found if one.text.startswith(text.rstrip("."))]
    edit_state(session, actor_pk=None, action=action, item=item.id, text=wording)


def rules_of(session: Session) -> list[str]:
    return [one.text for one in read_state_view(session.pk).items if one.kind == "rule"]


def test_state_of_a_new_session_is_empty(session: Session) -> None:
    assert read_state_text(session.pk).yaml == ""


def test_state_has_the_documented_form(session: Session) -> None:
    write(session, message("Never use an ORM.\nThanks"))
    write(session, *used("write_file", {"path": "src/auth.py"}), answer())
    assert state_of(session) == {
        "session": {
            "id": str(session.uuid),
            "workspace": session.workspace.root,
            "model": "model-a",
            "turn_count": 4,
            "total_tokens": 7,
        },
        "files_touched": [{"path": "src/auth.py", "action": "created", "turn": 2}],
        "rules": ["Never use an ORM (turn 1)"],
        "current_focus": "Never use an ORM.",
    }


def test_edit_is_an_event_and_changes_the_state_at_once(session: Session, user: User) -> None:
    write(session, message("We use tabs"))
    [decision] = ids(session, "decision")
    [row] = edit_state(
        session, actor_pk=user.pk, action="edit", item=decision, text="We use two spaces"
    ).rows
    assert "Decision reworded: We use two spaces" in fill_marks(row.html)
    assert ChatEvent.objects.get(session=session).event_type == "info"
    assert state_of(session)["key_decisions"] == ["We use two spaces (turn 1)"]
    edit_state(session, actor_pk=user.pk, action="strike", item=decision)
    view = read_state_view(session.pk)
    assert [(item.text, item.struck_by) for item in view.struck] == [
        ("We use two spaces", "person")
    ]
    assert "key_decisions" not in state_of(session)
    edit_state(session, actor_pk=user.pk, action="unstrike", item=decision)
    assert state_of(session)["key_decisions"] == ["We use two spaces (turn 1)"]


def test_edit_that_changes_nothing_appends_no_event(session: Session) -> None:
    write(session, message("We use tabs"))
    [decision] = ids(session, "decision")
    edit_state(session, actor_pk=None, action="pin", item=decision)
    assert edit_state(session, actor_pk=None, action="pin", item=decision).rows == []
    assert ChatEvent.objects.filter(session=session).count() == 1


def test_pinned_decision_outlives_any_number_of_others(session: Session) -> None:
    write(session, message("We use tabs"))
    [decision] = ids(session, "decision")
    edit_state(session, actor_pk=None, action="pin", item=decision)
    write(session, *(message(f"We decided to plant row {n}") for n in range(30)))
    assert len(ids(session, "decision")) == 10
    assert ids(session, "decision")[0] == decision
    edit_state(session, actor_pk=None, action="unpin", item=decision)
    assert decision not in ids(session, "decision")


@pytest.mark.parametrize(
    ("action", "item", "text", "code"),
    [
        ("burn", "d1.0", "", "state_action_unknown"),
        ("pin", "d9.9", "", "state_item_unknown"),
        ("edit", "d1.0", " ", "state_text_empty"),
        ("edit", "d1.0", "x" * 161, "state_text_too_long"),
        ("edit", "c1", "x" * 101, "state_text_too_long"),
    ],
)
def test_invalid_edit_is_refused(
    session: Session, action: str, item: str, text: str, code: str
) -> None:
    write(session, message("We use tabs"))
    with pytest.raises((Rejected, TooLarge)) as raised:
        edit_state(session, actor_pk=None, action=action, item=item, text=text)
    assert raised.value.code == code
    assert not ChatEvent.objects.filter(session=session).exists()


@pytest.mark.parametrize("text", ["Always use tabs for indentation.", "We use Postgres 16."])
def test_rule_that_is_repeated_after_its_removal_applies_again(session: Session, text: str) -> None:
    write(session, message(text), answer())
    act(session, "strike", text)
    write(session, message(text), answer(), message("Thanks, go on with the parser"))
    view = read_state_view(session.pk)
    [item] = [one for one in view.items if one.text == text[:-1]]
    assert (item.turn, view.struck) == (3, ())
    assert f"{text[:-1]} (turn 3)" in read_state_text(session.pk).yaml
    act(session, "strike", text)
    assert text[:-1] not in read_state_text(session.pk).yaml
    assert check_state(session.pk) == ""


@pytest.mark.parametrize("wording", ["", "Always write in German"])
def test_removed_and_replaced_rule_is_restored_at_once(session: Session, wording: str) -> None:
    write(session, message("Always answer in German."), answer())
    if wording:
        act(session, "edit", "Always answer in German", wording=wording)
    act(session, "strike", wording or "Always answer in German")
    later = wording.replace("German", "English") or "Always answer in English"
    write(session, message(f"{later}."), answer())
    edit_state(session, actor_pk=None, action="unstrike", item="r1.0")
    assert rules_of(session) == [wording or "Always answer in German", later]
    assert read_state_view(session.pk).struck == ()
    assert check_state(session.pk) == ""


def test_rule_that_is_repeated_after_a_rewording_applies_as_said(session: Session) -> None:
    write(session, message("Always use tabs for indentation."), answer())
    act(session, "edit", "Always use tabs", wording="Always use 4 spaces for indentation")
    write(session, message("Always use tabs for indentation."), answer())
    assert rules_of(session) == ["Always use tabs for indentation"]
    act(session, "edit", "Always use tabs", wording="Always use 2 spaces for indentation")
    assert rules_of(session) == ["Always use 2 spaces for indentation"]


@pytest.mark.parametrize(
    ("said", "wording", "later", "standing", "replaced"),
    [
        # The opposite of the rewording
        (
            "Always answer in German",
            "Always add a summary at the end",
            "Never add a summary at the end",
            ["Never add a summary at the end"],
            "Always add a summary at the end",
        ),
        # The opposite of the original
        (
            "Always use tabs",
            "Always wrap lines at 80 characters",
            "Never use tabs",
            ["Always wrap lines at 80 characters", "Never use tabs"],
            None,
        ),
        # The opposite of both
        (
            "Always use tabs",
            "Always use tabs, never spaces",
            "Never use tabs, always spaces",
            ["Never use tabs, always spaces"],
            "Always use tabs, never spaces",
        ),
        # The rewording itself
        (
            "Always use tabs",
            "Always wrap lines at 80 characters",
            "Always wrap lines at 80 characters",
            ["Always wrap lines at 80 characters"],
            "Always wrap lines at 80 characters",
        ),
        # A part of the rewording
        (
            "Always use tabs",
            "Always use tabs and wrap lines at 80 characters",
            "Always wrap lines at 80 characters",
            [
                "Always use tabs and wrap lines at 80 characters",
                "Always wrap lines at 80 characters",
            ],
            None,
        ),
    ],
)
def test_later_rule_is_compared_with_the_wording_of_the_person(
    session: Session,
    said: str,
    wording: str,
    later: str,
    standing: list[str],
    replaced: str | None,
) -> None:
    write(session, message(f"{said}."), answer())
    act(session, "edit", said, wording=wording)
    write(session, message(f"{later}."), answer())
    struck = [
        (one.text, one.original, one.replaced_in) for one in read_state_view(session.pk).struck
    ]
    assert rules_of(session) == standing
    assert struck == ([(replaced, said, 3)] if replaced else [])
    assert check_state(session.pk) == ""


def test_rewording_does_not_replace_rules_that_were_said_before(session: Session) -> None:
    write(session, message("Always answer in German."), answer())
    write(session, message("Never add a summary at the end."), answer())
    act(session, "edit", "Always answer", wording="Always add a summary at the end")
    write(session, message("Go on"), answer())
    assert len(rules_of(session)) == 2
    write(session, message("Never add a summary at the end."), answer())
    assert rules_of(session) == ["Never add a summary at the end"]


def test_rewording_outlives_any_number_of_values(session: Session) -> None:
    write(session, message("Always use tabs."), answer())
    act(session, "edit", "Always use tabs", wording="Always wrap lines at 80 characters")
    write(session, message("Never use tabs."))
    for number in range(MAX_REPLACED + 2):
        write(session, message(f"The response time is now {200 + number} ms."))
    assert rules_of(session) == ["Always wrap lines at 80 characters", "Never use tabs"]
    assert check_state(session.pk) == ""


def test_replaced_rewording_stays_replaced_after_later_strikes(session: Session) -> None:
    write(session, message("Always answer in German."), answer())
    act(session, "edit", "Always answer", wording="Always add a summary at the end")
    later = ["Never add a summary at the end", "Never use eval", "Never push to main"]
    later += ["Always run the linter", "Always quote paths", "Never edit migrations"]
    for text in later:
        [turn] = write(session, message(f"{text}."))
        struck = f"Struck r{turn}.0: {text}"
        write(session, *used("session_state", {"action": "strike"}, struck))
    assert rules_of(session) == []
    assert check_state(session.pk) == ""


@pytest.mark.parametrize("later", ["Go on", "Never use tabs"])
def test_reworded_rule_is_struck_by_its_wording(session: Session, later: str) -> None:
    write(session, message("Always use tabs."), answer())
    act(session, "edit", "Always use tabs", wording="Always wrap lines at 80 characters")
    write(session, message(later), answer())
    output = "Struck r1.0: Always wrap lines at 80 characters"
    write(session, *used("session_state", {"action": "strike"}, output))
    [gone] = read_state_view(session.pk).struck
    assert (gone.text, gone.original, gone.struck_by) == (
        "Always wrap lines at 80 characters",
        "Always use tabs",
        "model",
    )
    assert rules_of(session) == ([later] if later != "Go on" else [])
    edit_state(session, actor_pk=None, action="unstrike", item=gone.id)
    assert "Always wrap lines at 80 characters" in rules_of(session)
    assert check_state(session.pk) == ""


def test_pinned_rule_that_is_repeated_remains_one_item(session: Session) -> None:
    write(session, message("Always use tabs for indentation."), answer())
    act(session, "pin", "Always use tabs")
    write(session, message("Always use tabs for indentation."), answer())
    [item] = [one for one in read_state_view(session.pk).items if one.kind == "rule"]
    assert (item.is_pinned, item.turn, item.times) == (True, 3, 2)
    act(session, "unpin", "Always use tabs")
    [item] = [one for one in read_state_view(session.pk).items if one.kind == "rule"]
    assert item.is_pinned is False


def test_file_can_be_struck_but_not_reworded(session: Session) -> None:
    write(session, *used("read_file", {"path": "a.py"}))
    [file] = ids(session, "file")
    with pytest.raises(Rejected) as raised:
        edit_state(session, actor_pk=None, action="edit", item=file, text="b.py")
    assert raised.value.code == "state_action_impossible"
    edit_state(session, actor_pk=None, action="strike", item=file)
    assert ids(session, "file") == []


def test_number_of_pinned_items_is_limited(session: Session) -> None:
    for number in range(21):
        write(session, *used("read_file", {"path": f"{number}.py"}))
        last = read_state_view(session.pk).items[-1].id
        if number < 20:
            edit_state(session, actor_pk=None, action="pin", item=last)
    write(session, message("We use tabs"))
    with pytest.raises(Rejected) as raised:
        edit_state(session, actor_pk=None, action="pin", item="d43.0")
    assert raised.value.code == "state_pins_full"


def test_edit_whose_event_cannot_be_written_is_refused(session: Session) -> None:
    write(session, message("We use tabs"))
    before = read_state_text(session.pk)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE conversations_chatevent RENAME TO elsewhere")
    with pytest.raises(Unavailable):
        edit_state(session, actor_pk=None, action="strike", item="d1.0")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE elsewhere RENAME TO conversations_chatevent")
    assert read_state_text(session.pk) == before


def test_state_of_an_unknown_session_is_not_found() -> None:
    with pytest.raises(NotFound):
        read_state_text(7)


def test_error_in_the_state_rules_does_not_lose_a_turn(caplog: pytest.LogCaptureFixture) -> None:
    odd: Any = None
    facts = read_facts_of(NewTurn(role="user", content=odd, token_count=3))
    assert (facts.tokens, facts.focus) == (3, "")
    assert "state_facts_failed" in caplog.text


def test_rewind_of_an_outdated_state_gives_the_right_state(session: Session) -> None:
    write(session, message("We use tabs"), message("Never use eval"))
    Session.objects.filter(pk=session.pk).update(state_turn=0)
    append_rewind(session, from_turn=2, from_seq=None, reason="reset", actor_pk=None)
    assert state_of(session)["key_decisions"] == ["We use tabs (turn 1)"]


def test_state_is_read_with_one_query_at_any_session_length(
    session: Session, django_assert_num_queries: Any
) -> None:
    write(session, *(message(f"We decided to plant row {n}") for n in range(120)))
    with django_assert_num_queries(1):
        read_state_text(session.pk)
    with django_assert_num_queries(1):
        read_state_view(session.pk)


def test_rewind_removes_the_items_of_its_turns(session: Session) -> None:
    write(session, message("We use tabs"), *used("read_file", {"path": "a.py"}))
    write(session, message("We decided to use spaces"), *used("edit_file", {"path": "a.py"}))
    before = read_state_text(session.pk)
    append_rewind(session, from_turn=4, from_seq=None, reason="reset", actor_pk=None)
    state = state_of(session)
    assert state["key_decisions"] == ["We use tabs (turn 1)"]
    assert state["files_touched"] == [{"path": "a.py", "action": "read", "turn": 2}]
    assert state["current_focus"] == "We use tabs"
    assert before == rebuild_state_text(session.pk, turn=before.turn, seq=before.seq, rewinds=0)


@pytest.mark.parametrize("action", ["strike", "pin"])
def test_mark_stays_if_the_repetition_of_a_rule_is_rewound(session: Session, action: str) -> None:
    text = "Always use tabs for indentation."
    write(session, message(text), answer(), message(text), answer())
    act(session, action, text)
    append_rewind(session, from_turn=3, from_seq=None, reason="edit", actor_pk=None)
    view = read_state_view(session.pk)
    [item] = [one for one in (*view.items, *view.struck) if one.kind == "rule"]
    assert (item.turn, item.is_pinned, item in view.struck) == (
        1,
        action == "pin",
        action == "strike",
    )
    write(session, message("Go on"), answer())
    assert check_state(session.pk) == ""


def test_rewind_can_reach_behind_checkpoints(session: Session) -> None:
    write(session, *(message(f"We decided to plant row {n}") for n in range(250)))
    texts = {150: read_state_text(session.pk)}
    append_rewind(session, from_turn=151, from_seq=None, reason="reset", actor_pk=None)
    assert state_of(session)["key_decisions"][-1] == "We decided to plant row 149 (turn 150)"
    assert StateCheckpoint.objects.filter(session=session).count() == 6
    then = rebuild_state_text(session.pk, turn=250, seq=0, rewinds=0)
    assert then == texts[150]
