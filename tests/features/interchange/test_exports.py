"""Importing exports of ChatGPT, Claude.ai and Open WebUI. The fixtures were made by hand."""

import json
import re
import zipfile
from base64 import b64encode
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from hypothesis import given
from hypothesis import strategies as st

from conversations.agent.window.messages import MessageCaps, make_piece
from conversations.archive.transcript import read_page
from conversations.archive.turns import stored_turns
from conversations.archive.verify import verify_session
from conversations.domain.turns import NewTurn
from conversations.features.interchange import openwebui, trees
from conversations.models import Attachment, Session, Turn
from tests.archive.files import image_bytes
from tests.archive.turns import append_turn

from .conftest import Importing, assert_nothing_new, metadata_of, words_of

pytestmark = pytest.mark.django_db

FIXTURES = Path(__file__).parent / "fixtures"


def fixture(name: str) -> Any:
    return json.loads((FIXTURES / f"{name}.json").read_text())


def session_of(title: str) -> Session:
    return Session.objects.get(title=title)


def blocks_of(session: Session, number: int) -> list[dict[str, Any]]:
    return json.loads(Turn.objects.get(session=session, number=number).blocks or "[]")


def given_of(session: Session, number: int) -> list[dict[str, Any]]:
    """Return the blocks that the model is given for a turn."""
    [turn] = stored_turns(Turn.objects.filter(session=session, number=number))
    return make_piece(turn, model="m", caps=MessageCaps(message=10**6, result=10**6)).blocks


# ChatGPT


def chatgpt_archive(folder: Path) -> Path:
    path = folder / "export.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", json.dumps(fixture("chatgpt")))
        archive.writestr("chat.html", "<html></html>")
        archive.writestr("user.json", '{"id": "user-1"}')
        archive.writestr("file-Abc123-pot.png", image_bytes())
    return path


def test_the_path_that_the_person_saw_becomes_the_session(
    importing: Importing, tmp_path: Path
) -> None:
    counts = importing(chatgpt_archive(tmp_path))
    assert importing.format == "chatgpt"
    assert importing.reports == ["export.zip: no conversations in chat.html, user.json"]
    assert (counts.sessions_added, counts.skipped, counts.conflicts) == (3, 0, 0)
    session = session_of("Roses in a pot")
    assert words_of(session) == [
        ("system", ""),
        ("system", "I have a balcony.\n\nBe short."),
        ("user", "How deep a pot for roses?"),
        ("assistant", "At least forty."),
        ("user", "And this one? Count its litres."),
        ("assistant", ""),
        ("system", "Thought for 5s"),
        ("assistant", ""),
        ("tool", "50.24\n"),
        ("assistant", "About fifty litres."),
    ]
    assert str(session.uuid) == "6776a1b2-0000-4000-8000-00000000c001"
    assert session.created_at.isoformat() == "2026-01-01T10:00:00.500000+00:00"
    assert json.loads(session.metadata)["source"]["gizmo_id"] == "g-gardener"


def test_the_other_answer_becomes_a_fork(importing: Importing, tmp_path: Path) -> None:
    importing(chatgpt_archive(tmp_path))
    main, branch = session_of("Roses in a pot"), session_of("Roses in a pot (branch 2)")
    assert (branch.parent, branch.fork_turn) == (main, 3)
    assert words_of(branch)[:3] == words_of(main)[:3]
    assert words_of(branch)[3:] == [("assistant", "Thirty centimetres.")]
    assert branch.archived_at is not None
    assert main.archived_at is None


def test_calls_results_thoughts_and_metadata_are_kept(importing: Importing, tmp_path: Path) -> None:
    importing(chatgpt_archive(tmp_path))
    session = session_of("Roses in a pot")
    [call] = blocks_of(session, 8)
    assert (call["id"], call["name"]) == ("call", "python")
    assert call["input"] == {"code": "print(3.14 * 2 * 2 * 4)"}
    result = Turn.objects.get(session=session, number=9)
    assert (result.tool_call_id, result.tool_name) == ("call", "python")
    assert blocks_of(session, 6) == [
        {"type": "thinking", "thinking": "Volume\n\nA cylinder, so pi r squared h."}
    ]
    assert metadata_of(session, 4)["source"]["metadata"]["citations"]
    assert metadata_of(session, 4)["model"] == "gpt-4o"
    assert metadata_of(session, 6)["model"] == "o3 (unsigned)"
    last = Turn.objects.get(session=session, number=10)
    assert (last.complete, last.stop_reason) == (False, "max_tokens")


def test_images_are_imported_and_missing_files_are_named(
    importing: Importing, tmp_path: Path
) -> None:
    importing(chatgpt_archive(tmp_path))
    session = session_of("Roses in a pot")
    picture = Attachment.objects.get(session=session)
    assert (picture.name, picture.width, picture.turn_number) == ("pot.png", 40, 5)
    assert blocks_of(session, 5)[1] == {"type": "document", "title": "plan.pdf"}
    rows = read_page(session, limit=100).rows
    assert "plan.pdf" in next(row.html for row in rows if row.cursor == "turn:5.0")
    assert {"type": "text", "text": "[document: plan.pdf]"} in given_of(session, 5)
    assert verify_session(session).problem == ""


def test_a_damaged_image_is_skipped_and_the_rest_is_imported(
    importing: Importing, tmp_path: Path
) -> None:
    conversations = [fixture("chatgpt")[0] | {"id": f"c{n}", "title": f"C{n}"} for n in range(3)]
    for one in conversations:
        del one["conversation_id"]
    path, mark = tmp_path / "export.zip", b"a mark in the picture " * 9
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("conversations.json", json.dumps(conversations))
        archive.writestr("file-Abc123-pot.png", image_bytes() + mark)
    path.write_bytes(path.read_bytes().replace(mark, mark.upper()))
    counts = importing(path)
    assert (counts.sessions_added, counts.attachments_added) == (6, 0)
    for number in range(3):
        session = session_of(f"C{number}")
        assert len(words_of(session)) == 10
        assert {"type": "image", "title": "pot.png"} in blocks_of(session, 5)
    told = "message u2: skipped: the file pot.png cannot be read: Bad CRC-32"
    assert len([line for line in importing.reports if told in line]) == 3
    importing(path)
    assert Session.objects.count() == 6


@pytest.mark.parametrize("name", [".", ""])
def test_an_archived_file_without_a_name_is_skipped(
    importing: Importing, tmp_path: Path, name: str
) -> None:
    path = chatgpt_archive(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo(name), b"x")
    counts = importing(path)
    assert (counts.sessions_added, counts.skipped) == (3, 1)
    assert f"{name or 'export.zip'}: skipped: it has no name" in importing.reports


# All formats


@pytest.mark.parametrize("name", ["chatgpt", "claude", "openwebui"])
def test_an_export_is_recognised_by_content_and_imported_once(
    importing: Importing, name: str
) -> None:
    counts = importing.text((FIXTURES / f"{name}.json").read_text(), "what-is-this.txt")
    assert importing.format == name
    assert counts.turns_added
    # The other program may have made the title, of any of the messages.
    assert not Session.objects.filter(title_is_chosen=True).exists()
    assert not [line for line in importing.reports if "skipped" in line]
    assert_nothing_new(importing.text((FIXTURES / f"{name}.json").read_text(), "other"))


def grown() -> Any:
    """Return the ChatGPT export with messages at the end and in a new, now current branch."""
    value = fixture("chatgpt")
    mapping = value[0]["mapping"]
    for id, parent in (("u3", "a2"), ("u1b", "ctx"), ("a1c", "u1b")):
        node = deepcopy(mapping["u1"])
        node |= {"id": id, "parent": parent, "children": []}
        node["message"] |= {"id": id, "content": {"content_type": "text", "parts": [f"«{id}»"]}}
        mapping[id] = node
        mapping[parent]["children"].append(id)
    value[0]["current_node"] = "a1c"
    return value


def test_a_newer_export_adds_messages_at_the_end_and_in_a_branch(importing: Importing) -> None:
    importing.json(fixture("chatgpt"))
    counts = importing.json(grown())
    assert (counts.sessions_added, counts.sessions_extended, counts.conflicts) == (1, 1, 0)
    assert words_of(session_of("Roses in a pot"))[-1] == ("user", "«u3»")
    branch = session_of("Roses in a pot (branch 3)")
    assert [text for _, text in words_of(branch)][-2:] == ["«u1b»", "«a1c»"]
    assert (branch.fork_turn, branch.archived_at) == (2, None)
    assert_nothing_new(importing.json(grown()))


def test_new_source_messages_become_a_fork_of_a_continued_session(
    importing: Importing, user: User
) -> None:
    importing.json(fixture("chatgpt"))
    main = session_of("Roses in a pot")
    append_turn(main, NewTurn(role="user", content="Said here."))
    counts = importing.json(grown())
    assert counts.conflicts == 0
    assert words_of(main)[-1] == ("user", "Said here.")
    fork = Session.objects.get(turns__content="«u3»")
    assert (fork.parent, fork.fork_turn) == (main, 10)
    assert_nothing_new(importing.json(grown()))


def test_the_complete_conversations_of_a_truncated_file_are_imported(importing: Importing) -> None:
    text = json.dumps(fixture("claude"))
    counts = importing.text(text[: len(text) - 300])
    assert (counts.sessions_added, counts.skipped) == (2, 1)
    assert any("after conversation 1" in line for line in importing.reports)


def test_invalid_conversations_do_not_prevent_the_import_of_others(importing: Importing) -> None:
    value = [{"mapping": {"a": 1}, "title": ["x"]}, 7, *fixture("chatgpt"), {"mapping": "?"}]
    value.insert(2, {"mapping": {"a": {"parent": ["b"], "children": 5, "message": {"id": 1}}}})
    counts = importing.json(value)
    assert counts.skipped == 1
    assert any("conversation 2: skipped: it is not an object" in line for line in importing.reports)
    assert session_of("Roses in a pot")


# Claude.ai


def test_a_claude_answer_becomes_turns_with_its_calls_and_results(
    importing: Importing,
) -> None:
    importing.json(fixture("claude"))
    session = session_of("Pruning (branch 2)")
    assert words_of(session) == [
        ("user", "When do I prune?"),
        ("assistant", "Let me look."),
        ("tool", "March, say gardeners."),
        ("assistant", "In March."),
    ]
    assert [block["type"] for block in blocks_of(session, 2)] == ["thinking", "text", "tool_use"]
    result = Turn.objects.get(session=session, number=3)
    assert (result.tool_call_id, result.tool_name) == ("toolu_1", "web_search")
    [thought] = metadata_of(session, 2)["left_of_blocks"]
    assert thought["summaries"] == [{"summary": "Search"}]
    others = metadata_of(session, 4)["left_of_blocks"]
    assert [block["type"] for block in others] == ["text", "token_budget"]
    assert others[0]["citations"]


def test_a_claude_session_follows_the_newest_message(importing: Importing) -> None:
    importing.json(fixture("claude"))
    session = session_of("Pruning")
    assert [text for _, text in words_of(session)] == [
        "When do I prune?",
        "After the frost.",
        "Thanks",
    ]
    assert Attachment.objects.get(session=session).name == "notes.txt"
    assert {"type": "image", "title": "hedge.png"} in blocks_of(session, 1)
    assert json.loads(session.metadata)["source"]["summary"] == "About when to cut roses."


def test_an_older_export_without_parents_becomes_one_session(importing: Importing) -> None:
    importing.json(fixture("claude"))
    session = session_of("An older export")
    assert words_of(session) == [("user", "An older export"), ("assistant", "has no parents")]


# Open WebUI


def test_an_open_webui_answer_becomes_turns(importing: Importing) -> None:
    text = (FIXTURES / "openwebui.json").read_text()
    importing.text(text.replace("IMAGE", b64encode(image_bytes()).decode()))
    session = session_of("Compost")
    assert words_of(session) == [
        ("user", "Is it done?"),
        ("assistant", "I measure."),
        ("tool", "21 °C"),
        ("assistant", "Cool: it is done."),
        ("user", "Good."),
    ]
    thinking, said, call = blocks_of(session, 2)
    assert thinking == {"type": "thinking", "thinking": "Smell & heat."}
    assert (call["id"], call["name"], call["input"]) == (
        "call_1",
        "thermometer",
        {"spot": "core"},
    )
    assert said["text"] == "I measure."
    assert session.system_prompt == "Be earthy."
    assert session.pinned_at is not None
    names = Attachment.objects.filter(session=session).order_by("pk").values_list("name", "kind")
    assert list(names) == [("image", "image"), ("log.txt", "text")]
    assert metadata_of(session, 1)["files"][0]["name"] == "Garden books"
    other = session_of("Compost (branch 2)")
    assert words_of(other)[-1] == ("assistant", "Not yet.")
    assert (other.parent, other.fork_turn) == (session, 1)


def test_a_single_chat_saved_by_open_webui_is_imported(importing: Importing) -> None:
    importing.json(fixture("openwebui")[0]["chat"])
    assert importing.format == "openwebui"
    assert Session.objects.count() == 2


DETAILS = re.compile(r"<details\s([^>]*)>(.*?)</details>\s*", re.DOTALL)


@given(st.lists(st.sampled_from(["<details ", "<details>", ">", "</details>", " ", "a", "\n"])))
def test_details_are_found_as_by_a_regular_expression(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert list(openwebui._find_details(text)) == [
        (*m.span(), *m.groups()) for m in DETAILS.finditer(text)
    ]


@pytest.mark.parametrize(
    "piece", ["<details ", "<details a", '<details type="reasoning"><summary>', "a" * 50, 'a="<']
)
def test_unclosed_details_are_parsed_in_linear_time(piece: str) -> None:
    """Each character is read only a few times. Parsing in quadratic time would take hours here."""
    for text in (piece * 100_000, f"<details {piece * 100_000}></details>"):
        assert list(openwebui._answer("node", text, "model"))


def test_a_conversation_with_too_many_branches_is_reported(
    importing: Importing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "MAX_SPREAD_MESSAGES", 3)
    counts = importing(FIXTURES / "chatgpt.json")
    assert counts.skipped == 1
    assert "it has so many branches" in importing.reports[0]
