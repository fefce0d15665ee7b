"""Messages of other programs that are imported as the beginning of a session."""

import base64
import json
from typing import Any

import pytest
from django.contrib.auth.models import User

from conversations.agent.window.messages import MessageCaps, join_pieces, make_piece
from conversations.archive.message_formats import import_history, prepare_messages, read_messages
from conversations.archive.sessions import get_session
from conversations.archive.transcript import read_page
from conversations.archive.verify import verify_session
from conversations.domain.errors import Conflict, Rejected
from conversations.domain.formats import ANTHROPIC, OPENAI, read_content
from conversations.models import Attachment, Session
from conversations.rendering.messages import fill_marks
from tests.archive.files import image_bytes
from tests.archive.turns import read_turns
from tests.domain.formats import samples

pytestmark = pytest.mark.django_db


def bring(session: Session, messages: list[Any], *, format: str, model: str = "") -> Session:
    brought = prepare_messages(messages, format=format, model=model)
    assert import_history(session, brought, user_pk=session.owner_id) == len(brought.turns)
    return get_session(session.uuid)


def given(session: Session, *, model: str = "claude-test") -> list[dict[str, Any]]:
    """Return the messages that the model is given for the session."""
    caps = MessageCaps(message=10**6, result=10**6)
    turns = read_turns(session.pk)
    return join_pieces(make_piece(turn, model=model, caps=caps) for turn in turns)


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        (ANTHROPIC, samples.ANTHROPIC),
        (OPENAI, samples.OPENAI),
        (OPENAI, samples.CHAT_MESSAGES),
    ],
)
def test_imported_messages_are_exported_unchanged(
    session: Session, name: str, messages: list[Any]
) -> None:
    session = bring(session, messages, format=name)
    assert read_messages(session, format=name, limit=100).messages == messages
    assert verify_session(session).problem == ""


def test_imported_images_become_attachments_and_keep_their_bytes(session: Session) -> None:
    data = image_bytes(size=(3000, 10))
    source = {"type": "base64", "media_type": "image/jpeg", "data": base64.b64encode(data).decode()}
    block = {"type": "image", "source": source, "cache_control": {"type": "ephemeral"}}
    shown = {"type": "tool_result", "tool_use_id": "a", "content": [{**block}]}
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    messages = [
        {"role": "user", "content": [block, {"type": "text", "text": "Look."}]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [shown]},
    ]
    session = bring(session, messages, format=ANTHROPIC)
    kept = Attachment.objects.filter(session=session).order_by("pk")
    assert [(a.turn_number, a.media_type) for a in kept] == [(1, "image/png"), (3, "image/png")]
    assert source["data"][:60] not in "".join(t.blocks or "" for t in read_turns(session.pk))
    assert read_messages(session, format=ANTHROPIC, limit=9).messages == messages
    assert "user_message" in read_page(session, limit=9).rows[0].html


def test_imported_messages_are_shown_with_an_import_notice(session: Session) -> None:
    session = bring(session, samples.OPENAI[1:6], format=OPENAI)
    rows = read_page(session, limit=50).rows
    assert "What is the weather" in rows[0].html
    assert "The 5 turns above were imported" in fill_marks(rows[-1].html)
    assert session.title == "What is the weather in Paris and in Rome?"


def test_model_is_given_imported_turns_in_supported_blocks(session: Session) -> None:
    session = bring(session, samples.ANTHROPIC, format=ANTHROPIC)
    first, answer, results, _, attached, _, note = given(session)
    assert first["content"][0]["text"] == "What is the weather in Paris and in Rome?"
    assert [block["type"] for block in answer["content"]] == ["text", "tool_use", "tool_use"]
    assert [block["type"] for block in results["content"]] == ["tool_result", "tool_result", "text"]
    kinds = [block["type"] for block in attached["content"]]
    assert kinds == ["text", "text", "text", "image", "document", "text"]
    assert "example.org/a.png, which is not loaded" in attached["content"][1]["text"]
    assert attached["content"][-1]["text"] == "[from_the_future]"
    assert note["content"][0]["text"] == "[From now on, be brief.]"


def test_thinking_is_given_only_to_the_model_that_produced_it(session: Session) -> None:
    session = bring(session, samples.ANTHROPIC[:2], format=ANTHROPIC, model="claude-test")
    assert given(session)[1]["content"][0]["type"] == "thinking"
    assert given(session, model="another")[1]["content"][0]["type"] == "text"


def test_leading_system_messages_become_instructions(session: Session) -> None:
    assert bring(session, samples.CHAT_MESSAGES, format=OPENAI).instructions == (
        "You look after a garden."
    )
    assert given(session)[0]["content"][0]["text"] == "Which plants are dry?"


def test_history_can_be_imported_only_once(session: Session, user: User) -> None:
    bring(session, samples.CHAT_MESSAGES, format=OPENAI)
    with pytest.raises(Conflict):
        bring(session, samples.CHAT_MESSAGES, format=OPENAI)
    assert read_messages(session, format=OPENAI, limit=9).next_turn is None


def test_message_content_is_split_into_text_and_files() -> None:
    image = samples.OPENAI[6]["content"][1]
    spoken = read_content(["Hello", [{"type": "text", "text": "and this"}, image]])
    assert spoken.text == "Hello\n\nand this"
    assert [(file.name, file.data[:4]) for file in spoken.files] == [("image.png", b"\x89PNG")]
    title = {"type": "document", "source": {"type": "text", "data": "Roses"}, "title": "a.txt"}
    assert [(f.name, f.data) for f in read_content([[title]]).files] == [("a.txt", b"Roses")]
    lines = {"type": "document", "source": {"type": "base64", "data": "Um9z\r\nZXM=\n"}}
    assert read_content([[lines]]).files[0].data == b"Roses"


@pytest.mark.parametrize(
    "content",
    [
        3,
        ["Hello"],
        [samples.ANTHROPIC[4]["content"][1]],
        [{"type": "tool_result"}],
        [{"type": "image", "source": {"type": "base64", "data": "A"}}],
        [{"type": "image", "source": {"type": "base64", "data": "???"}}],
        [{"type": "text", "text": {"a": True}}],
        [{"type": "text", "text": 5}],
        [{"type": "text", "text": None}],
    ],
)
def test_invalid_message_content_is_refused(content: Any) -> None:
    with pytest.raises(Rejected):
        read_content([content])


@pytest.mark.parametrize("ids", [("call_0", "call_0", "call_0"), ("", "", "")])
def test_tool_calls_with_the_same_id_keep_their_results(
    session: Session, ids: tuple[str, str, str]
) -> None:
    def call(place: int) -> dict[str, Any]:
        function = {"name": "read", "arguments": json.dumps({"n": place})}
        return {"id": ids[place], "type": "function", "function": function}

    def result(place: int) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": ids[place], "content": f"result {place}"}

    messages = [
        {"role": "user", "content": "Read."},
        {"role": "assistant", "content": None, "tool_calls": [call(0), call(1)]},
        *(result(0), result(1)),
        {"role": "assistant", "content": None, "tool_calls": [call(2)]},
        *(result(2), {"role": "assistant", "content": "Read."}),
    ]
    session = bring(session, messages, format=OPENAI)
    assert read_messages(session, format=OPENAI, limit=100).messages == messages
    blocks = [block for message in given(session) for block in message["content"]]
    calls = {b["id"]: b["input"]["n"] for b in blocks if b["type"] == "tool_use"}
    results = {b["tool_use_id"]: b["content"] for b in blocks if b["type"] == "tool_result"}
    assert sorted(calls.values()) == [0, 1, 2]
    assert results == {id: f"result {n}" for id, n in calls.items()}
