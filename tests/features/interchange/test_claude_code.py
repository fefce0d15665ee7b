"""Sessions of Claude Code. The fixture was made by hand."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from conversations.features.interchange.import_sessions import ImportCounts
from conversations.features.interchange.pipeline import ImportRun
from conversations.models import Attachment, Compaction, Session, Turn
from tests.archive.files import image_bytes

from .conftest import Importing, assert_nothing_new, metadata_of, words_of

pytestmark = pytest.mark.django_db

FIXTURE = Path(__file__).parent / "fixtures" / "claude-code.jsonl"
SESSION = "8c1f0000-0000-4000-8000-00000000ee01"


def text() -> str:
    return FIXTURE.read_text().replace("IMAGE", b64encode(image_bytes()).decode())


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in text().splitlines()]


def main() -> Session:
    return Session.objects.get(uuid=SESSION)


BEFORE = [
    ("user", "Which beds have no label?"),
    ("assistant", "I read both."),
    ("tool", "roses\nherbs"),
    ("tool", "cat: labels.txt: No such file"),
    ("assistant", "Neither has one."),
]


def test_the_session_follows_the_last_prompt(importing: Importing) -> None:
    counts = importing.text(text())
    assert importing.format == "claude-code"
    assert (counts.sessions_added, counts.skipped, counts.conflicts) == (3, 0, 0)
    session = main()
    assert words_of(session) == [
        *BEFORE,
        ("user", "Label both."),
        ("assistant", ""),
        ("tool", "Two labels written."),
        ("assistant", "Both have labels."),
        ("system", "Conversation compacted"),
        ("system", "This session is continued: both beds have labels."),
        ("system", "<local-command-caveat>…</local-command-caveat>"),
        ("user", "Thanks."),
        ("assistant", "Gladly."),
    ]
    assert (session.title, session.model) == ("Labels for the beds", "claude-sonnet-4-5")
    assert session.created_at.isoformat() == "2026-01-10T09:00:01+00:00"
    assert Attachment.objects.get(session=session).turn_number == 6


def test_parallel_calls_form_one_answer_with_its_results(importing: Importing) -> None:
    importing.text(text())
    session = main()
    answer, first, second = Turn.objects.filter(session=session, number__in=(2, 3, 4)).order_by(
        "number"
    )
    blocks = json.loads(answer.blocks or "")
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    assert blocks[0]["signature"] == "sig-1"
    assert metadata_of(session, 2)["model"] == "claude-sonnet-4-5"
    assert answer.stop_reason == "tool_use"
    assert [(t.tool_call_id, t.tool_name) for t in (first, second)] == [
        ("t1", "Read"),
        ("t2", "Bash"),
    ]
    assert [metadata_of(session, number)["ok"] for number in (3, 4)] == [True, False]
    assert metadata_of(session, 3)["source"]["toolUseResult"]["file"] == {"numLines": 2}
    assert metadata_of(session, 2)["source"]["message"]["usage"]["output_tokens"] == 5


def test_blocks_of_other_types_are_kept_in_the_metadata(importing: Importing) -> None:
    told = lines()
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    told[-1]["message"]["content"] = [search, {"type": "text", "text": "Gladly."}]
    told[-2]["message"]["content"] = [{"type": "text", "text": "Thanks."}, {"type": "voice"}]
    told[13]["message"]["content"] = "Done: roses, as a text."
    importing.lines(*told)
    assert words_of(main())[-1] == ("assistant", "Gladly.")
    assert metadata_of(main(), 14)["left_of_blocks"] == [search]
    assert metadata_of(main(), 13)["left_of_blocks"] == [{"type": "voice"}]
    assert Turn.objects.filter(content="Done: roses, as a text.").exists()


def test_an_edited_prompt_creates_a_fork(importing: Importing) -> None:
    importing.text(text())
    branch = Session.objects.get(title="Labels for the beds (branch 2)")
    assert words_of(branch) == [
        *BEFORE,
        ("user", "Label the roses."),
        ("assistant", "Done: roses."),
    ]
    assert (branch.parent, branch.fork_turn) == (main(), 5)


@pytest.mark.parametrize(
    ("told", "title", "is_chosen"),
    [
        ([], "Labels for the beds", False),
        ([{"type": "ai-title", "aiTitle": "Beds"}], "Beds", False),
        ([{"type": "custom-title", "customTitle": "Herbs"}], "Herbs", True),
    ],
)
def test_only_a_title_that_a_person_gave_counts_as_chosen(
    importing: Importing, told: list[dict[str, Any]], title: str, is_chosen: bool
) -> None:
    importing.lines(*lines(), *told)
    assert (main().title, main().title_is_chosen) == (title, is_chosen)
    chain = Session.objects.get(title="Side chain: Write labels")
    assert not chain.title_is_chosen


def test_a_side_chain_becomes_a_separate_session(importing: Importing) -> None:
    importing.text(text())
    chain = Session.objects.get(title="Side chain: Write labels")
    assert words_of(chain) == [("user", "Write labels"), ("assistant", "Two labels written.")]
    assert (chain.parent, chain.fork_turn) == (main(), None)


def test_a_compaction_covers_the_turns_before_it(importing: Importing) -> None:
    importing.text(text())
    compaction = Compaction.objects.get(session=main())
    assert (compaction.from_turn, compaction.to_turn) == (1, 10)
    assert compaction.summary == "This session is continued: both beds have labels."


def test_a_repeated_import_adds_only_new_lines(importing: Importing) -> None:
    whole = text().splitlines(keepends=True)
    importing.text("".join(whole[:-2]))
    counts = importing.text("".join(whole))
    assert (counts.turns_added, counts.conflicts) == (2, 0)
    assert_nothing_new(importing.text(text()))


def test_agent_files_in_a_folder_are_linked_to_their_session(
    importing: Importing, tmp_path: Path
) -> None:
    folder = tmp_path / "projects" / "-home-ann-garden"
    folder.mkdir(parents=True)
    agent = [line | {"isSidechain": True, "agentId": "9f"} for line in lines()[3:4]]
    (folder / "agent-9f.jsonl").write_text("".join(json.dumps(line) + "\n" for line in agent))
    (folder / "session.jsonl").write_text(text())
    (folder / "notes.md").write_text("# not a session")
    counts = importing(tmp_path / "projects")
    assert counts.sessions_added == 4
    found = Session.objects.get(title="Side chain: Which beds have no label?")
    assert found.parent == main()
    assert importing.reports[-1].endswith("no conversations in -home-ann-garden/notes.md")
    assert_nothing_new(importing(tmp_path / "projects"))


@pytest.mark.parametrize("given", ["auto", "claude-code"])
def test_a_session_with_a_large_first_image_is_recognised_in_a_folder(
    importing: Importing, tmp_path: Path, given: str
) -> None:
    """The first message of the session is a line of more than a megabyte."""
    folder, other = tmp_path / "projects", "8c1f0000-0000-4000-8000-00000000ee02"
    folder.mkdir()
    (folder / "small.jsonl").write_text(text())
    data = b64encode(image_bytes() + b"\0" * 1_000_000).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    prompt = {"role": "user", "content": [{"type": "image", "source": source}]}
    large = [lines()[0], lines()[3] | {"sessionId": other, "message": prompt}]
    (folder / "large.jsonl").write_text("".join(json.dumps(line) + "\n" for line in large))
    counts = ImportCounts()
    ImportRun(importing.target, counts, lambda line, text: None, format=given).run(folder, name="")
    assert main().turn_count > 1
    assert Session.objects.get(uuid=other).turn_count == 1
    assert Attachment.objects.get(session__uuid=other).media_type == "image/png"


def test_a_file_without_messages_is_recognised(importing: Importing) -> None:
    queued = {"type": "queue-operation", "operation": "enqueue", "sessionId": SESSION}
    for line in (lines()[0], queued):
        importing.lines(line)
        assert importing.format == "claude-code"
        assert importing.reports == [
            f"file: skipped because they are not part of the conversation: 1 {line['type']}"
        ]


def test_damaged_lines_are_skipped_and_the_rest_is_imported(importing: Importing) -> None:
    damaged = text().splitlines(keepends=True)
    damaged[5] = damaged[5][:60] + "\n"
    damaged.insert(0, "\x00\n")
    counts = importing.text("".join(damaged))
    assert counts.skipped == 2
    assert words_of(main())[-1] == ("assistant", "Gladly.")


def test_cyclic_and_orphaned_lines_are_imported(importing: Importing) -> None:
    told = lines()
    told[3]["parentUuid"] = "a7"
    told[-2]["parentUuid"] = "nowhere"
    counts = importing.lines(*told)
    kept = Turn.objects.values_list("content", flat=True)
    assert counts.skipped == 0
    assert {"Thanks.", "Gladly.", "Both have labels.", "Done: roses."} <= set(kept)
