"""``write_file``, ``delete_file`` and ``move_file``: creating, deleting and moving files."""

from pathlib import Path

import pytest

from conversations.domain.tool_calls import CallPlan
from conversations.models import FileChange
from tests.tools.using import Use, root, use

__all__ = ["root", "use"]

pytestmark = pytest.mark.django_db


def test_new_file_is_written_with_its_folders(use: Use, root: Path) -> None:
    plan = use.plan("write_file", path="src/app/main.py", content="a\nb\n")
    assert isinstance(plan, CallPlan)
    assert (plan.summary, plan.note) == ("Create src/app/main.py", "A new file of 2 lines.")
    assert plan.diff == "--- /dev/null\n+++ b/src/app/main.py\n@@ -0,0 +1,2 @@\n+a\n+b\n"
    assert not (root / "src").exists()
    use.basis = plan.basis
    result = use("write_file", path="src/app/main.py", content="a\nb\n")
    assert (result.ok, result.output) == (True, "Created src/app/main.py: 2 lines.")
    assert result.diff == plan.diff
    assert (root / "src/app/main.py").read_bytes() == b"a\nb\n"


def test_approved_creation_does_not_overwrite_a_newer_file(use: Use, root: Path) -> None:
    plan = use.plan("write_file", path="a.txt", content="mine")
    assert isinstance(plan, CallPlan)
    use.basis = plan.basis
    (root / "a.txt").write_text("theirs")
    assert "changed after" in use("write_file", path="a.txt", content="mine").output
    assert (root / "a.txt").read_text() == "theirs"


def test_overwriting_is_reported(use: Use, root: Path) -> None:
    (root / "a.txt").write_text("old\nold\n")
    result = use("write_file", path="./a.txt", content="new")
    assert result.output == "Overwrote ./a.txt: 1 line; it had 2 lines."
    assert "\\ No newline at end of file" in result.diff


@pytest.mark.parametrize(
    ("content", "note", "diff"),
    [
        (
            "a\nb\n",
            "It replaces a binary file of 2.5 kB with 2 lines.",
            "--- a/b.bin\n+++ b/b.bin\n@@ -0,0 +1,2 @@\n+a\n+b\n",
        ),
        ("", "It replaces a binary file of 2.5 kB with 0 lines.", ""),
    ],
)
def test_text_that_replaces_a_binary_file_is_shown(
    use: Use, root: Path, content: str, note: str, diff: str
) -> None:
    (root / "b.bin").write_bytes(b"\0" * 2500)
    plan = use.plan("write_file", path="b.bin", content=content)
    assert isinstance(plan, CallPlan)
    assert (plan.note, plan.diff) == (note, diff)


def test_writing_the_same_content_needs_no_approval(use: Use, root: Path) -> None:
    (root / "a.txt").write_text("same")
    plan = use.plan("write_file", path="a.txt", content="same")
    assert isinstance(plan, CallPlan)
    assert plan.effect == "reads"
    assert "already" in use("write_file", path="a.txt", content="same").output
    assert FileChange.objects.count() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"path": "a.txt"}, "'content'"),
        ({"content": "x"}, "'path'"),
        ({"path": "a.txt", "content": "\ud800"}, "surrogate"),
        ({"path": "a.txt", "content": "x" * 10_000_001}, "more than"),
        ({"path": "folder", "content": "x"}, "is a folder"),
        ({"path": "fixed", "content": "x"}, "read-only"),
    ],
)
def test_invalid_write_is_refused_with_an_explanation(
    use: Use, root: Path, arguments: dict[str, object], said: str
) -> None:
    (root / "folder").mkdir()
    (root / "fixed").touch()
    (root / "fixed").chmod(0o444)
    result = use("write_file", **arguments)
    assert not result.ok
    assert said in result.output


def test_files_links_and_empty_folders_can_be_deleted(use: Use, root: Path) -> None:
    (root / "a.txt").write_text("one\n")
    (root / "b.txt").write_text("two\n")
    (root / "link").symlink_to("b.txt")
    (root / "empty").mkdir()
    (root / "full").mkdir()
    (root / "full/c.txt").touch()
    plan = use.plan("delete_file", path="a.txt")
    assert isinstance(plan, CallPlan)
    assert plan.diff == "--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n"
    assert use("delete_file", path="a.txt").output == "Deleted a.txt (4 bytes)."
    assert use("delete_file", path="link").output == "Deleted the link link."
    assert use("delete_file", path="empty/").output == "Deleted the empty folder empty/."
    refused = use("delete_file", path="full")
    assert "contains 1 entry; only empty folders" in refused.output
    assert "a.txt does not exist" in use("delete_file", path="a.txt").output
    assert sorted(entry.name for entry in root.iterdir()) == ["b.txt", "full"]


def test_file_too_large_to_show_can_be_deleted(use: Use, root: Path) -> None:
    (root / "log").write_bytes(b"x" * 10_000_001)
    plan = use.plan("delete_file", path="log")
    assert isinstance(plan, CallPlan)
    assert plan.summary == "Delete the file of 10.0 MB log"
    assert use("delete_file", path="log").ok
    assert not (root / "log").exists()


def test_files_and_folders_are_moved_only_to_a_free_path(use: Use, root: Path) -> None:
    (root / "a.txt").write_text("a")
    (root / "b.txt").write_text("b")
    (root / "folder").mkdir()
    (root / "folder/c.txt").write_text("c")
    for target, said in (
        ("b.txt", "b.txt already exists"),
        ("folder", "give the whole new path, such as folder/name"),
        ("./a.txt", "already there"),
    ):
        result = use("move_file", source="a.txt", destination=target)
        assert not result.ok
        assert said in result.output
    assert "into itself" in use("move_file", source="folder", destination="folder/x").output
    plan = use.plan("move_file", source="a.txt", destination="new/d.txt")
    assert isinstance(plan, CallPlan)
    assert plan.summary == "Move a.txt to new/d.txt"
    use.basis = plan.basis
    assert use("move_file", source="a.txt", destination="new/d.txt").ok
    use.basis = ""
    moved = use("move_file", source="folder", destination="new/folder")
    assert moved.output == "Moved the folder folder to new/folder."
    assert (root / "new/d.txt").read_text() == "a"
    assert (root / "new/folder/c.txt").read_text() == "c"


@pytest.mark.parametrize("path", [".envrc", "link/tasks.json", "a/../.vscode/tasks.json"])
def test_change_of_a_self_running_file_is_marked_and_approved_each_time(
    use: Use, root: Path, path: str
) -> None:
    for folder in (".vscode", "a"):
        (root / folder).mkdir()
    (root / "link").symlink_to(".vscode")
    (root / "plain").write_text("x")
    for plan in (
        use.plan("write_file", path=path, content="x"),
        use.plan("move_file", source="plain", destination=path),
    ):
        assert isinstance(plan, CallPlan)
        assert plan.note.endswith("Other programs run this file automatically.")
        assert plan.kind_key == ""
    plain = use.plan("write_file", path="src/main.py", content="x")
    assert isinstance(plain, CallPlan)
    assert plain.kind_key == "files"


def test_change_that_is_not_fully_shown_is_approved_once_at_a_time(use: Use, root: Path) -> None:
    (root / "run.py").write_text("print(1)\n")
    hidden = "print(2)" + " " * 6000 + "; import os"
    for path, text in (("run.py", hidden), ("new.py", hidden), ("new.py", "x\n" * 60_000)):
        plan = use.plan("write_file", path=path, content=text)
        assert isinstance(plan, CallPlan)
        assert "Not all of the change is shown." in plan.note
        assert (plan.kind_key, plan.place) == ("", "")
    plan = use.plan("edit_file", path="run.py", old_text="print(1)", new_text="print(2)")
    assert isinstance(plan, CallPlan)
    assert (plan.note, plan.kind_key) == ("", "files")


@pytest.mark.parametrize(
    ("there", "content", "note"),
    [
        (
            b"\xff\xfeh\0\xe9\0\n\0",
            "hé\n",
            "Its encoding was UTF-16 and becomes UTF-8.",
        ),
        (
            b"\xef\xbb\xbfa;b\n",
            "a;b\n",
            "Its encoding was UTF-8 with a byte order mark and becomes UTF-8.",
        ),
        (b"h\xe9\n", "hé\n", "Its encoding was Latin-1 and becomes UTF-8."),
        (
            b"h\xe9\r\na\r\n",
            "hé\na\n",
            "Its encoding was Latin-1 and becomes UTF-8. Its newlines were CRLF and become LF.",
        ),
        (b"a\nb\n", "a\r\nb\r\n", "Its newlines were LF and become CRLF."),
        (b"a\r\nb\r\n", "a", ""),
        (b"a", "a\r\n", ""),
        (b"\xef\xbb\xbfa;b\n", "\ufeffa;c\n", ""),
        ("hé\n".encode(), "he\n", ""),
    ],
)
def test_change_of_encoding_or_newlines_is_reported(
    use: Use, root: Path, there: bytes, content: str, note: str
) -> None:
    (root / "a.txt").write_bytes(there)
    plan = use.plan("write_file", path="a.txt", content=content)
    assert isinstance(plan, CallPlan)
    assert plan.note == note
    # The model is told as well, because other programs may read the file.
    assert use("write_file", path="a.txt", content=content).output.endswith(note)


def test_deletion_of_a_large_file_has_the_kind_of_file_changes(use: Use, root: Path) -> None:
    (root / "a.log").write_text("line\n" * 60_000)
    plan = use.plan("delete_file", path="a.log")
    assert isinstance(plan, CallPlan)
    assert "Not all of the change is shown." in plan.note
    assert plan.kind_key == "files"
