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


def test_it_prints_turns_best_first(session: Session) -> None:
    printed = run("recall", session.uuid, "beans xylophone")
    first, *_, total, missing = printed.splitlines()
    assert first.split()[0] == "1"
    assert "When do the beans go out?" in first
    assert total == "1 turns matched."
    assert missing == "No turn that was searched contains: xylophone"


def test_at_a_terminal_what_is_found_moves_no_cursor(session: Session) -> None:
    turn = NewTurn(role="user", content="radish\x1b[2J")
    append(session.pk, session_uuid=session.uuid, turns=[turn])
    assert "radish\x1b[2J" in run("recall", session.uuid, "radish")
    with someone_reading() as (typist, terminal):
        call_command("recall", str(session.uuid), "radish", stdout=terminal)
        typist.until(r"radish␛\[2J")


def test_it_says_that_nothing_is_found(session: Session) -> None:
    found = run("recall", session.uuid, "xylophone")
    assert found == "Nothing found.\nNo turn that was searched contains: xylophone\n"


def test_json_is_one_object(session: Session) -> None:
    answer = json.loads(run("recall", session.uuid, "beans go out", "--json", "--limit", 2))
    assert [hit["turn"] for hit in answer["hits"]] == [1, 2]
    assert answer["hits"][0]["score"] > answer["hits"][1]["score"] > 0
    assert [hit["is_near"] for hit in answer["hits"]] == [False, True]
    assert (answer["total"], answer["missing"]) == (1, [])


def test_standard_input_is_a_query_a_line(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('beans\n\npeas "\n'))
    lines = run("recall", session.uuid, "--stdin").splitlines()
    assert [json.loads(line)["total"] for line in lines] == [1, 0, 1]


def test_a_session_has_short_names(session: Session) -> None:
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
def test_what_cannot_be_used_is_one_sentence(
    session: Session, arguments: list[str], sentence: str
) -> None:
    with pytest.raises(CommandError, match=sentence):
        run("recall", *arguments)


def test_a_name_of_several_sessions_is_refused(session: Session) -> None:
    from uuid import UUID

    for end in (1, 2):
        uuid = UUID(f"abcdef00-0000-4000-8000-00000000000{end}")
        create_session(session.workspace, owner=session.owner, uuid=uuid)
    with pytest.raises(CommandError, match="whole UUID"):
        run("recall", "abcdef00", "x")


def test_the_index_is_made_anew_and_checked(session: Session) -> None:
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
