"""Exporting a session as messages: whole, in pages and with attachments."""

import base64
import json
from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command

from conversations.archive.append import append
from conversations.archive.attachments import attachment_block, save_attachment
from conversations.archive.blobs import remove_blob
from conversations.archive.message_formats import read_messages
from conversations.archive.rewinds import append_rewind
from conversations.archive.sessions import get_session
from conversations.domain.formats import ANTHROPIC, OPENAI, READERS, WRITERS
from conversations.domain.text import dump_json
from conversations.domain.turns import NewTurn
from conversations.features.interchange.export import session_messages
from conversations.models import Session
from tests.archive.files import image_bytes
from tests.domain.formats import samples

pytestmark = pytest.mark.django_db


INSTRUCTED = [("system", "Be brief."), ("user", "Hello")]


def fill(session: Session, *turns: NewTurn) -> Session:
    append(session.pk, session_uuid=session.uuid, turns=turns)
    return get_session(session.uuid)


@pytest.fixture
def talk(session: Session) -> Session:
    return fill(session, *READERS[ANTHROPIC](samples.ANTHROPIC))


def test_a_session_is_exported_as_the_api_would_receive_it(talk: Session) -> None:
    session = fill(talk, NewTurn(role="user", content="Thanks."))
    line = json.loads("".join(session_messages(session, format=ANTHROPIC)))
    assert line["session"] == str(session.uuid)
    assert line["messages"] == [*samples.ANTHROPIC, {"role": "user", "content": "Thanks."}]
    assert "system" not in line


def test_the_messages_api_format_separates_the_system_prompt(session: Session) -> None:
    said = [NewTurn(role="system", content="Be brief."), NewTurn(role="user", content="Hello")]
    session = fill(session, *said)
    line = json.loads("".join(session_messages(session, format=ANTHROPIC)))
    assert line["system"] == [{"type": "text", "text": "Be brief."}]
    assert line["messages"] == [{"role": "user", "content": "Hello"}]
    line = json.loads("".join(session_messages(session, format=OPENAI)))
    assert [message["role"] for message in line["messages"]] == ["system", "user"]


@pytest.mark.parametrize("name", [ANTHROPIC, OPENAI])
def test_session_instructions_are_exported_as_the_system_message(
    session: Session, name: str
) -> None:
    Session.objects.update(instructions="Be brief.")
    session = fill(session, NewTurn(role="user", content="Hello"))
    expected = [{"role": role, "content": text} for role, text in INSTRUCTED]
    found, turn = [], 0
    while turn is not None:
        page = read_messages(session, format=name, from_turn=turn, limit=1)
        found, turn = found + page.messages, page.next_turn
    assert found == expected
    line = json.loads("".join(session_messages(session, format=name)))
    if name == ANTHROPIC:
        assert line["system"] == [{"type": "text", "text": "Be brief."}]
        assert line["messages"] == expected[1:]
    else:
        assert line["messages"] == expected


@pytest.mark.parametrize("name", [ANTHROPIC, OPENAI])
def test_an_empty_session_has_no_messages(session: Session, name: str) -> None:
    assert json.loads("".join(session_messages(session, format=name)))["messages"] == []


def test_pages_do_not_split_results_that_belong_together(talk: Session) -> None:
    found, turn = [], 1
    while turn:
        page = read_messages(talk, format=ANTHROPIC, from_turn=turn, limit=2)
        found += page.messages
        turn = page.next_turn or 0
        assert len(page.messages) == 2 or not turn
    assert found == samples.ANTHROPIC


def test_rewound_turns_are_left_out(talk: Session, user: User) -> None:
    append_rewind(talk, from_turn=6, from_seq=None, reason="edit", actor_pk=user.pk)
    page = read_messages(get_session(talk.uuid), format=ANTHROPIC, limit=50)
    assert page.messages == samples.ANTHROPIC[:3]


def test_attached_files_are_exported_unchanged(session: Session, user: User) -> None:
    image, text = image_bytes(size=(3000, 100)), b"Roses are red."
    kept = [
        save_attachment(session.pk, data=image, name="roses.png", user_pk=user.pk, turn=1),
        save_attachment(session.pk, data=text, name="roses.txt", user_pk=user.pk, turn=1),
    ]
    assert kept[0].sent != kept[0].digest
    blocks = [*map(attachment_block, kept), {"type": "text", "text": "Look."}]
    turn = NewTurn(role="user", content="Look.", blocks=dump_json(blocks))
    result = NewTurn(role="tool", content="A rose", tool_call_id="a", blocks=dump_json(blocks[:1]))
    session = fill(session, turn, result)
    message, results = read_messages(session, format=ANTHROPIC, limit=5).messages
    assert base64.b64decode(message["content"][0]["source"]["data"]) == image
    assert message["content"][1] == {
        "type": "document",
        "title": "roses.txt",
        "source": {"type": "text", "media_type": "text/plain", "data": "Roses are red."},
    }
    said, shown = results["content"][0]["content"]
    assert (said["text"], shown) == ("A rose", message["content"][0])
    chat, result_of_tool = read_messages(session, format=OPENAI, limit=5).messages
    assert chat["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert chat["content"][1]["file"]["filename"] == "roses.txt"
    assert [part["text"] for part in result_of_tool["content"]] == ["A rose", "[image]"]
    remove_blob(kept[0].digest)
    message = read_messages(session, format=ANTHROPIC, limit=5).messages[0]
    assert message["content"][0]["text"] == "[roses.png was attached; it is no longer stored.]"


@pytest.mark.parametrize("name", [ANTHROPIC, OPENAI])
def test_the_command_writes_one_line_for_each_session(talk: Session, name: str) -> None:
    out = StringIO()
    call_command("export_sessions", "--all", "--format", name, stdout=out)
    [line] = out.getvalue().splitlines()
    expected = [message for _, message in WRITERS[name](_read(), lambda block: [block])]
    assert json.loads(line)["messages"] == expected


def _read() -> list[NewTurn]:
    return list(READERS[ANTHROPIC](samples.ANTHROPIC))
