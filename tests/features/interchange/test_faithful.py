"""Oddities of real exports: the archive contains all of their texts."""

import json
import zipfile
from base64 import b64decode, b64encode
from html import escape
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from conversations.archive.blobs import read_blob
from conversations.models import Attachment, Session, Turn

from .conftest import Importing, assert_nothing_new, metadata_of, words_of
from .test_nothing_lost import everything

pytestmark = pytest.mark.django_db

type Object = dict[str, Any]


def webui(*messages: tuple[str, str | None, str, str], current: str | None = None) -> list[Object]:
    told = {
        id: {
            "id": id,
            "parentId": parent,
            "role": role,
            "content": text,
            "timestamp": 1_700_000_000,
        }
        for id, parent, role, text in messages
    }
    for id, parent, *_ in messages:
        if parent in told:
            told[parent].setdefault("childrenIds", []).append(id)
    history = {"messages": told, "currentId": current or messages[-1][0]}
    chat = {"title": "Roses", "history": history}
    return [{"id": "aaaaaaaa-0000-4000-8000-000000000001", "title": "Roses", "chat": chat}]


def test_removed_messages_and_their_replacements_are_kept(importing: Importing) -> None:
    shared = [("1", None, "user", "first"), ("2", "1", "assistant", "second")]
    importing.json(webui(*shared, ("3", "2", "user", "old"), ("4", "3", "assistant", "gone")))
    newer = webui(*shared, ("5", "2", "user", "fresh"), ("6", "5", "assistant", "come"))
    counts = importing.json(newer)
    assert counts.conflicts == 0, importing.reports
    assert {"fresh", "come", "old", "gone"} <= set(Turn.objects.values_list("content", flat=True))
    assert_nothing_new(importing.json(newer))


def test_a_changed_message_is_imported_too(importing: Importing) -> None:
    shared = [("1", None, "user", "first")]
    importing.json(webui(*shared, ("2", "1", "assistant", "half")))
    newer = webui(*shared, ("2", "1", "assistant", "half and whole"), ("3", "2", "user", "more"))
    importing.json(newer)
    assert "half and whole" in everything()
    assert "more" in everything()
    assert_nothing_new(importing.json(newer))


def test_every_branch_has_its_own_title_and_fork_turn(importing: Importing) -> None:
    """This also holds for later exports with new branches before the known ones."""
    chat = [
        ("1", None, "user", "one"),
        ("2", "1", "assistant", "two"),
        ("3", "1", "assistant", "two b"),
        ("4", "2", "user", "three"),
        ("5", "4", "assistant", "four"),
    ]
    importing.json(webui(*chat, current="5"))
    chat += [("6", "4", "assistant", "four b"), ("7", None, "user", "one b")]
    importing.json(webui(*chat, current="5"))
    chat[4] = ("5", "4", "assistant", "four, changed")
    importing.json(webui(*chat, current="5"))
    main, *branches = Session.objects.order_by("pk")
    assert [(one.title, one.fork_turn, words_of(one)[-1][1]) for one in branches] == [
        ("Roses (branch 2)", 1, "two b"),
        ("Roses (branch 3)", 3, "four b"),
        ("Roses (branch 4)", 0, "one b"),
        ("Roses (branch 5)", 3, "four, changed"),
    ]
    assert {one.parent for one in branches} == {main}
    assert_nothing_new(importing.json(webui(*chat, current="5")))


def test_a_chat_that_is_only_a_list_is_read(importing: Importing) -> None:
    chat = webui(("1", None, "user", "first"))
    chat[0]["chat"]["history"] = {"messages": {}, "currentId": None}
    chat[0]["chat"]["messages"] = [{"id": "1", "role": "user", "content": "only in the list"}]
    importing.json(chat)
    assert "only in the list" in everything()


def calls_of_tools() -> list[tuple[str, Any]]:
    turns = Turn.objects.filter(role="assistant").order_by("number")
    blocks = [block for turn in turns for block in json.loads(turn.blocks or "[]")]
    return [(one["name"], one["input"]) for one in blocks if one["type"] == "tool_use"]


GIVEN = {"query": "kühle Rosen", "count": 3}


@pytest.mark.parametrize("arguments", [GIVEN, json.dumps(GIVEN)], ids=["once", "twice"])
def test_call_arguments_are_read_if_encoded_once_or_twice(
    importing: Importing, arguments: Any
) -> None:
    told = f'arguments="{escape(json.dumps(arguments))}" result="{escape(json.dumps("none"))}"'
    answer = f'<details type="tool_calls" done="true" id="a" name="search_web" {told}>\n</details>'
    importing.json(webui(("1", None, "user", "Which?"), ("2", "1", "assistant", answer)))
    assert [input for _, input in calls_of_tools()] == [GIVEN]
    assert words_of(Session.objects.get())[2:] == [("tool", "none")]


def test_executed_code_becomes_a_tool_call(importing: Importing) -> None:
    told = '<details type="code_interpreter" done='
    ran, went_on = 'print("&lt;" * 2)', "print(1)"
    answer = (
        f'Look: {told}"true" duration="1" output="{escape(json.dumps({"stdout": "&lt;&lt;"}))}">\n'
        f"<summary>Analyzed</summary>\n```python\n{ran}\n```\n</details>\nAnd: "
        f'{told}"false">\n<summary>Analyzing…</summary>\n```python\n{went_on}\n```\n</details>\n'
    )
    importing.json(webui(("1", None, "user", "Which?"), ("2", "1", "assistant", answer)))
    assert words_of(Session.objects.get())[1:] == [
        ("assistant", "Look: "),
        ("tool", '{"stdout": "&lt;&lt;"}'),
        ("assistant", "And: "),
    ]
    assert calls_of_tools() == [
        ("code_interpreter", {"code": code, "language": "python"}) for code in (ran, went_on)
    ]


def code(uuid: str, parent: str | None, role: str, content: Any, **more: Any) -> Object:
    message = {"role": role, "content": content} | more.pop("message", {})
    return {
        "type": role,
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": SESSION,
        "timestamp": "2026-01-10T09:00:01Z",
        "message": message,
    } | more


SESSION = "8c1f0000-0000-4000-8000-00000000ee09"


def said(uuid: str, parent: str, id: str, *blocks: Object) -> Object:
    return code(uuid, parent, "assistant", list(blocks), message={"id": id, "model": "claude-x"})


def text(words: str) -> Object:
    return {"type": "text", "text": words}


def call(id: str, words: str) -> Object:
    return {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": words}}


def result(uuid: str, parent: str, id: str, words: str) -> Object:
    block = {"type": "tool_result", "tool_use_id": id, "content": words}
    return code(uuid, parent, "user", [block])


def test_repeated_imports_of_a_growing_session_lose_nothing(importing: Importing) -> None:
    lines = [
        code("u1", None, "user", "Go"),
        said("a1", "u1", "m1", text("Let me look.")),
        said("a2", "a1", "m1", call("t1", "ls roses")),
        result("r1", "a2", "t1", "red"),
        said("a3", "r1", "m1", call("t2", "ls herbs")),
        result("r2", "a3", "t2", "thyme"),
        said("a4", "r2", "m2", text("All seen.")),
    ]
    for end in range(2, len(lines) + 1):
        importing.lines(*lines[:end])
    for words in ("Let me look.", "ls roses", "red", "ls herbs", "thyme", "All seen."):
        assert words in everything(), words
    assert_nothing_new(importing.lines(*lines))


def test_answers_with_the_same_id_keep_their_places(importing: Importing) -> None:
    importing.lines(
        code("u1", None, "user", "one"),
        said("a1", "u1", "m", text("first")),
        code("u2", "a1", "user", "two"),
        said("a2", "u2", "m", text("second")),
        code("u3", "a2", "user", "three"),
        said("a3", "u3", "m", text("third")),
    )
    [session] = Session.objects.all()
    assert [w for _, w in words_of(session)] == ["one", "first", "two", "second", "three", "third"]


def test_both_continuations_of_a_copied_session_are_kept(importing: Importing) -> None:
    shared = [code("u1", None, "user", "one"), said("a1", "u1", "m1", text("first"))]
    importing.lines(
        *shared, code("u2", "a1", "user", "two"), said("a2", "u2", "m2", text("second"))
    )
    importing.lines(
        *shared, code("u3", "a1", "user", "three"), said("a3", "u3", "m3", text("third"))
    )
    found = everything()
    for words in ("two", "second", "three", "third"):
        assert words in found
    assert importing.reports == []


def test_a_prompt_typed_while_the_model_worked_becomes_a_message(importing: Importing) -> None:
    importing.lines(
        code("u1", None, "user", "one"),
        said("a1", "u1", "m1", text("first")),
        {
            "type": "attachment",
            "uuid": "q1",
            "parentUuid": "a1",
            "sessionId": SESSION,
            "timestamp": "2026-01-10T09:00:01Z",
            "attachment": {"type": "queued_command", "prompt": "also the herbs"},
        },
        said("a2", "q1", "m2", text("herbs too")),
    )
    [session] = Session.objects.all()
    assert ("user", "also the herbs") in words_of(session)


def claude(*messages: Object) -> list[Object]:
    return [
        {
            "uuid": "aaaaaaaa-0000-4000-8000-000000000002",
            "name": "Beds",
            "chat_messages": [
                {"uuid": f"m{n}", "created_at": "2026-01-01T10:00:00Z"} | m
                for n, m in enumerate(messages)
            ],
        }
    ]


def test_contents_beside_the_blocks_of_a_claude_message_are_kept(importing: Importing) -> None:
    importing.json(
        claude(
            {
                "sender": "human",
                "text": "spoken",
                "content": [{"type": "voice_note", "title": "v"}],
            },
            {
                "sender": "assistant",
                "text": "outer words",
                "content": [{"type": "text", "text": ""}],
            },
            {
                "sender": "assistant",
                "text": "x",
                "content": [text("x")],
                "files": [{"file_name": "made-by-model.csv"}],
                "attachments": [
                    {"file_name": "notes.txt", "extracted_content": "assistant attached"}
                ],
            },
            {
                "sender": "assistant",
                "text": "",
                "content": [
                    {"type": "tool_use", "id": "t", "name": "web_search", "input": {"query": "q"}},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "name": "web_search",
                        "message": "m-words",
                        "display_content": {"type": "json", "value": "shown-words"},
                        "structured_content": {"a": "structured-words"},
                        "content": [{"type": "knowledge", "title": "k-title", "text": "k-text"}],
                    },
                ],
            },
        )
    )
    found = everything()
    for words in (
        "spoken",
        "outer words",
        "made-by-model.csv",
        "assistant attached",
        "m-words",
        "shown-words",
        "structured-words",
        "k-title",
        "k-text",
    ):
        assert words in found, words


def test_contents_of_unusual_shapes_are_kept(importing: Importing) -> None:
    details = (
        '<details type="tool_calls" done="true" id="x" name="n" result="whole-result">\n'
        "<summary>s</summary>\nbeside-result\n</details>"
        '<details type="tool_calls" done="false" id="y" name="n" result="part-result">'
        "<summary>s</summary>beside-part</details>"
    )
    claude_first = {"uuid": "m0", "sender": "human", "text": "claude-first"}
    for value in (
        claude(
            claude_first,
            claude_first,
            claude_first | {"text": "claude-again"},
            {"sender": "assistant", "content": "claude-text"},
            {"sender": "human", "content": ["claude-list"]},
        ),
        gpt({"author": {"role": "assistant"}, "content": "gpt-text"}),
        webui(("1", None, "assistant", details)),
    ):
        importing.json(value)
        assert_nothing_new(importing.json(value))
    lines = [
        code("u1", None, "user", ["code-list"]),
        code("u2", "u1", "user", {"type": "odd", "words": "code-object"}),
        code("u3", "u2", "assistant", {"type": "text", "text": "code-answer"}),
    ]
    importing.lines(*lines)
    assert_nothing_new(importing.lines(*lines))
    found = everything()
    for words in (
        *("claude-first", "claude-again", "claude-text", "claude-list", "gpt-text"),
        *("whole-result", "beside-result", "part-result", "beside-part"),
        *("code-list", "code-object", "code-answer"),
    ):
        assert words in found, words
    assert list(Turn.objects.values_list("content", flat=True)).count("claude-first") == 1


@pytest.mark.parametrize("count", [20_000, 40_000])
def test_long_texts_are_attached_in_parts(importing: Importing, count: int) -> None:
    long = "".join(f"Line {n} of a long log.\r\n" for n in range(count)) + "The ünd"
    pasted = {"file_name": "log.txt", "extracted_content": long}
    told = claude({"sender": "human", "text": "look", "attachments": [pasted]})
    chat = webui(("1", None, "user", "look"))
    held = {"filename": "log.txt", "data": {"content": long}}
    chat[0]["chat"]["history"]["messages"]["1"]["files"] = [{"type": "file", "file": held}]
    for value in (told, chat):
        importing.json(value)
        assert importing.reports == []
        parts = list(Attachment.objects.filter(session=Session.objects.latest("pk")).order_by("pk"))
        assert len(parts) == -(-len(long) // settings.LOOM.max_message_chars)
        assert parts[0].name == f"log (1 of {len(parts)}).txt"
        contents = [read_blob(part.digest) for part in parts]
        assert b"".join(contents).decode() == long
        assert contents[0].endswith(b"\r\n")
        assert_nothing_new(importing.json(value))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b64encode(b"\x00\xff" * 600_000).decode(), "note.ogg can’t be attached."),
        ("?" * 1_100_000, "not valid base64"),
    ],
    ids=["sound", "damaged"],
)
def test_a_file_that_is_too_large_to_be_kept_is_reported(
    importing: Importing, data: str, reason: str
) -> None:
    chat = webui(("1", None, "user", "hear"))
    file = {"type": "file", "name": "note.ogg", "url": f"data:audio/ogg;base64,{data}"}
    chat[0]["chat"]["history"]["messages"]["1"]["files"] = [file]
    importing.json(chat)
    [report] = importing.reports
    assert f"message 1: skipped: only the name of note.ogg was imported: {reason}" in report
    assert '"name":"note.ogg"' in everything()


def gpt(*messages: Object, current: str | None = None) -> list[Object]:
    mapping: Object = {"root": {"id": "root", "message": None, "parent": None, "children": ["n0"]}}
    above = "root"
    for n, m in enumerate(messages):
        mapping[f"n{n}"] = {
            "id": f"n{n}",
            "parent": above,
            "children": [f"n{n + 1}"],
            "message": {"id": f"n{n}", "create_time": 1.7e9 + n} | m,
        }
        above = f"n{n}"
    return [
        {
            "conversation_id": "aaaaaaaa-0000-4000-8000-000000000003",
            "title": "Pots",
            "create_time": 1.7e9,
            "mapping": mapping,
            "current_node": current or above,
        }
    ]


def test_recorded_speech_is_kept(importing: Importing) -> None:
    pointer = {"content_type": "audio_asset_pointer", "asset_pointer": "sediment://file_00eeff"}
    parts = [
        {"content_type": "audio_transcription", "text": "said aloud", "direction": "in"},
        {
            "content_type": "real_time_user_audio_video_asset_pointer",
            "frames_asset_pointers": [],
            "video_container_asset_pointer": None,
            "audio_asset_pointer": pointer,
        },
    ]
    message = {"content_type": "multimodal_text", "parts": parts}
    path = importing.folder / "export.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "conversations.json", json.dumps(gpt({"author": {"role": "user"}, "content": message}))
        )
        archive.writestr("audio/file_00eeff-sound.wav", b"RIFF\x00\x00\xff")
    importing(path)
    assert importing.reports == []
    [kept] = metadata_of(Session.objects.get(), 1)["files"]
    assert b64decode(kept["data"]) == b"RIFF\x00\x00\xff"


def test_contents_of_all_kinds_are_kept(importing: Importing) -> None:
    user, bot, tool = {"role": "user"}, {"role": "assistant"}, {"role": "tool", "name": "browser"}
    importing.json(
        gpt(
            {
                "author": user,
                "content": {
                    "content_type": "multimodal_text",
                    "parts": [
                        {
                            "content_type": "audio_transcription",
                            "text": "said aloud",
                            "direction": "in",
                        },
                        {
                            "content_type": "real_time_user_audio_video_asset_pointer",
                            "audio_asset_pointer": {"asset_pointer": "sediment://file_0001"},
                            "frames_asset_pointers": [],
                        },
                        "typed",
                        None,
                        5,
                    ],
                },
            },
            {
                "author": bot,
                "content": {"content_type": "code", "language": "json", "text": '{"q": 1}'},
                "recipient": "browser",
            },
            {
                "author": tool,
                "content": {
                    "content_type": "tether_quote",
                    "title": "QT",
                    "url": "http://q",
                    "domain": "q.example",
                    "text": "quoted",
                },
            },
            {
                "author": tool,
                "content": {
                    "content_type": "tether_browsing_display",
                    "result": "R1",
                    "summary": None,
                    "assets": ["as1"],
                },
            },
            {
                "author": bot,
                "content": {"content_type": "code", "language": "unknown", "text": "search('x')"},
                "recipient": "all",
            },
            {
                "author": bot,
                "weight": 0.0,
                "content": {"content_type": "text", "parts": ["weightless"]},
            },
            {
                "author": user,
                "content": {"content_type": "text", "parts": ["one part", "second part"]},
            },
            {
                "author": bot,
                "content": {"content_type": "text", "parts": []},
                "metadata": {"finish_details": {"type": "interrupted"}},
            },
            {"author": bot, "content": {"content_type": "text", "text": "no parts"}},
            {
                "author": bot,
                "content": {
                    "content_type": "multimodal_text",
                    "parts": [
                        {
                            "content_type": "image_asset_pointer",
                            "asset_pointer": "file-service://file-XYZ",
                            "metadata": {"dalle": {"prompt": "a red rose"}},
                        }
                    ],
                },
            },
            {"author": bot, "content": {"content_type": "execution_output", "text": "printed"}},
            {"author": bot, "content": None},
            {
                "author": bot,
                "content": {"content_type": "citable_code_output", "output_str": "cco"},
            },
            {
                "author": bot,
                "content": {"content_type": "sonic_webpage", "url": "u", "text": "sonic"},
            },
            {
                "author": bot,
                "content": {
                    "content_type": "thoughts",
                    "thoughts": [{"summary": "S", "content": "C", "chunks": ["chunky"]}],
                    "source_analysis_msg_id": "x",
                },
            },
            {
                "author": {"role": "critic"},
                "content": {"content_type": "text", "parts": ["critical"]},
            },
        )
    )
    found = everything()
    for words in (
        "said aloud",
        "file_0001",
        "typed",
        "QT",
        "q.example",
        "quoted",
        "R1",
        "as1",
        "search('x')",
        "weightless",
        "one part",
        "second part",
        "no parts",
        "a red rose",
        "printed",
        "cco",
        "sonic",
        "chunky",
        "critical",
    ):
        assert words in found, words
    assert importing.reports == []


def test_importing_a_folder_with_two_copies_again_adds_nothing(
    importing: Importing, tmp_path: Path
) -> None:
    older = [
        code("u1", None, "user", "one"),
        said("a1", "u1", "m1", text("first")),
        code("u2", "a1", "user", "two"),
        said("a2", "u2", "m2", text("second")),
    ]
    anew = [code("u3", "a1", "user", "three"), said("a3", "u3", "m3", text("third"))]
    folder = tmp_path / "copies"
    folder.mkdir()
    for name, lines in (("a.jsonl", older), ("b.jsonl", [*older, *anew])):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    importing(folder)
    assert sorted([words for _, words in words_of(s)] for s in Session.objects.all()) == [
        ["one", "first", "three", "third"],
        ["one", "first", "two", "second"],
    ]
    assert_nothing_new(importing(folder))
