"""The commands ``recall`` and ``rebuild_index``."""

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from conversations.archive.append import append
from conversations.archive.sessions import create_session
from conversations.domain.turns import NewTurn
from conversations.models import SearchEntry, SearchProgress, Session
from conversations.search.rebuild import check_session
from tests.typist import someone_reading

pytestmark = pytest.mark.django_db


@pytest.fixture
def session(session: Session) -> Session:
    texts = ["When do the beans go out?", "After the last frost, in May", "And the peas?"]
    turns = [NewTurn(role="user", content=text) for text in texts]
    append(session.pk, session_uuid=session.uuid, turns=turns)
    return session


def run(command: str, *arguments: Any, **options: Any) -> str:
    out = io.StringIO()
    call_command(command, *map(str, arguments), stdout=out, **options)
    return out.getvalue()


def test_recall_prints_the_best_turns_first(session: Session) -> None:
    printed = run("recall", session.uuid, "beans xylophone")
    first, *_, total, missing = printed.splitlines()
    assert first.split()[0] == "1"
    assert "When do the beans go out?" in first
    assert total == "1 turns matched."
    assert missing == "No turn that was searched contains: xylophone"


def test_control_characters_are_escaped_at_a_terminal(session: Session) -> None:
    turn = NewTurn(role="user", content="radish\x1b[2J")
    append(session.pk, session_uuid=session.uuid, turns=[turn])
    assert "radish\x1b[2J" in run("recall", session.uuid, "radish")
    with someone_reading() as (typist, terminal):
        call_command("recall", str(session.uuid), "radish", stdout=terminal)
        typist.until(r"radish␛\[2J")


def test_recall_says_that_nothing_was_found(session: Session) -> None:
    found = run("recall", session.uuid, "xylophone")
    assert found == "Nothing found.\nNo turn that was searched contains: xylophone\n"


def test_json_output_is_one_object(session: Session) -> None:
    answer = json.loads(run("recall", session.uuid, "beans go out", "--json", "--limit", 2))
    assert [hit["turn"] for hit in answer["hits"]] == [1, 2]
    assert answer["hits"][0]["score"] > answer["hits"][1]["score"] > 0
    assert [hit["is_near"] for hit in answer["hits"]] == [False, True]
    assert (answer["total"], answer["missing"]) == (1, [])


def test_each_line_of_standard_input_is_a_query(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('beans\n\npeas "\n'))
    lines = run("recall", session.uuid, "--stdin").splitlines()
    assert [json.loads(line)["total"] for line in lines] == [1, 0, 1]


def test_a_session_can_be_named_by_a_uuid_prefix_or_its_key(session: Session) -> None:
    Session.objects.filter(pk=session.pk).update(key="bead:ac-1")
    assert "beans" in run("recall", str(session.uuid)[:8], "beans")
    assert "beans" in run("recall", "bead:ac-1", "beans")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere", "x"], "This session does not exist"),
        (["0" * 8, "x"], "This session does not exist"),
        (["a\x00b", "x"], "This session does not exist"),
        (["nowhere"], "one query"),
        (["nowhere", "x", "--stdin"], "one query"),
        (["nowhere", "x", "--limit", "0"], "at least 1"),
    ],
)
def test_invalid_arguments_are_refused_in_one_sentence(
    session: Session, arguments: list[str], sentence: str
) -> None:
    with pytest.raises(CommandError, match=sentence):
        run("recall", *arguments)


def test_a_uuid_prefix_of_several_sessions_is_refused(session: Session) -> None:
    from uuid import UUID

    for end in (1, 2):
        uuid = UUID(f"abcdef00-0000-4000-8000-00000000000{end}")
        create_session(session.workspace, owner=session.owner, uuid=uuid)
    with pytest.raises(CommandError, match="full UUID"):
        run("recall", "abcdef00", "x")


def test_rebuild_index_rebuilds_and_checks_the_index(session: Session) -> None:
    assert "all correct" in run("rebuild_index", "--check")
    assert "1 sessions" in run("rebuild_index")
    assert SearchProgress.objects.get().indexed_turn == 3
    SearchEntry.objects.filter(said__contains="frost").update(said="sun")
    with pytest.raises(SystemExit):
        run("rebuild_index", "--check", "--session", session.uuid)
    run("rebuild_index", "--session", str(session.uuid)[:10])
    assert check_session(session.pk) == ""
    with pytest.raises(CommandError, match="This session does not exist"):
        run("rebuild_index", "--session", "nowhere")
