"""Applying changes to files: contents are stored and recorded before files are touched."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from conversations.agent.files.confined import FileConflict
from conversations.agent.undo.apply import MoveAction, RemoveAction, WriteAction, apply_changes
from conversations.archive.blobs import has_blob, read_blob
from conversations.domain.errors import Rejected
from conversations.models import FileChange

from .conftest import Calls, crossing


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def rows() -> list[tuple[str, str, str, bool]]:
    return [
        (row.path, row.before, row.after, row.done_at is not None)
        for row in FileChange.objects.all()
    ]


def apply(root: Path, calls: Calls, *actions: Any) -> None:
    async_to_sync(apply_changes)(root, actions, author=calls.author(), write=crossing)


def test_replaced_content_is_stored(root: Path, calls: Calls) -> None:
    (root / "a.txt").write_bytes(b"old")
    (root / "a.txt").chmod(0o750)
    apply(root, calls, WriteAction(path="a.txt", data=b"new", expect=digest(b"old")))
    assert (root / "a.txt").read_bytes() == b"new"
    assert (root / "a.txt").stat().st_mode & 0o777 == 0o750
    assert rows() == [("a.txt", digest(b"old"), digest(b"new"), True)]
    assert read_blob(digest(b"old")) == b"old"
    assert has_blob(digest(b"new"))


def test_created_folders_are_recorded(root: Path, calls: Calls) -> None:
    apply(root, calls, WriteAction(path="one/two/a.txt", data=b"new", expect=""))
    assert [row[0] for row in rows()] == ["one", "one/two", "one/two/a.txt"]
    assert all(row[3] for row in rows())


def test_file_that_somebody_else_changed_is_not_touched(root: Path, calls: Calls) -> None:
    (root / "a.txt").write_bytes(b"theirs")
    for action in (
        WriteAction(path="a.txt", data=b"new", expect=digest(b"old")),
        WriteAction(path="a.txt", data=b"new", expect=""),
        WriteAction(path="gone.txt", data=b"new", expect=digest(b"old")),
        RemoveAction(path="a.txt", expect=digest(b"old")),
        RemoveAction(path="gone.txt", expect=digest(b"old")),
    ):
        with pytest.raises(FileConflict):
            apply(root, calls, action)
    assert (root / "a.txt").read_bytes() == b"theirs"
    assert not rows()


def test_write_of_the_same_content_is_no_change(root: Path, calls: Calls) -> None:
    (root / "a.txt").write_bytes(b"same")
    apply(root, calls, WriteAction(path="a.txt", data=b"same"))
    assert not rows()


def test_move_is_recorded_as_a_removal_and_a_new_file(root: Path, calls: Calls) -> None:
    (root / "a.txt").write_bytes(b"old")
    apply(root, calls, MoveAction(source="a.txt", target="below/b.txt"))
    assert (root / "below/b.txt").read_bytes() == b"old"
    assert rows() == [
        ("below", "", digest(b""), True),
        ("a.txt", digest(b"old"), "", True),
        ("below/b.txt", "", digest(b"old"), True),
    ]


def test_folder_is_moved_with_its_contents(root: Path, calls: Calls) -> None:
    (root / "from/in").mkdir(parents=True)
    (root / "from/in/a.txt").write_bytes(b"a")
    os.symlink("a.txt", root / "from/in/link")
    apply(root, calls, MoveAction(source="from", target="to"))
    assert os.readlink(root / "to/in/link") == "a.txt"
    assert [row[0] for row in rows()] == [
        "from", "to", "from/in", "to/in", "from/in/a.txt", "to/in/a.txt",
        "from/in/link", "to/in/link",
    ]  # fmt: skip


def test_move_to_an_existing_file_is_refused(root: Path, calls: Calls) -> None:
    (root / "a.txt").write_bytes(b"a")
    (root / "b.txt").write_bytes(b"b")
    with pytest.raises(Rejected):
        apply(root, calls, MoveAction(source="a.txt", target="b.txt"))
    assert (root / "a.txt").read_bytes() == b"a"
    assert (root / "b.txt").read_bytes() == b"b"
    assert not rows()


def test_only_an_empty_folder_is_removed(root: Path, calls: Calls) -> None:
    (root / "empty").mkdir()
    (root / "full/in").mkdir(parents=True)
    apply(root, calls, RemoveAction(path="empty"))
    with pytest.raises(Rejected):
        apply(root, calls, RemoveAction(path="full"))
    assert rows() == [("empty", digest(b""), "", True)]


def test_changes_before_a_refused_change_stay(root: Path, calls: Calls) -> None:
    with pytest.raises(Rejected):
        apply(root, calls, WriteAction(path="a", data=b"1"), WriteAction(path="../out", data=b"2"))
    assert [row[0] for row in rows()] == ["a"]


def test_special_file_is_named_in_the_refusal(root: Path, calls: Calls) -> None:
    (root / "folder").mkdir()
    os.mkfifo(root / "folder/pipe")
    for action in (
        RemoveAction(path="folder/pipe"),
        WriteAction(path="folder/pipe", data=b"new"),
        MoveAction(source="folder/pipe", target="moved"),
        MoveAction(source="folder", target="moved"),
    ):
        with pytest.raises(Rejected, match=r"folder/pipe is a .*, not a file"):
            apply(root, calls, action)


def test_names_that_are_not_text_are_stored_exactly(root: Path, calls: Calls) -> None:
    name = os.fsdecode(b'caf\xe9 "\\x" \n')
    (root / name).write_bytes(b"old")
    apply(root, calls, MoveAction(source=name, target='"quoted"'))
    assert [row[0] for row in rows()] == [
        '"caf\\351 "\\\\x" \n"',
        '""quoted""',
    ]


def test_file_too_large_to_be_stored_is_not_touched(
    root: Path, calls: Calls, settings: Any
) -> None:
    settings.LOOM.snapshot_max_bytes, was = 10, settings.LOOM.snapshot_max_bytes
    try:
        (root / "big").write_bytes(b"x" * 11)
        for action in (
            RemoveAction(path="big"),
            WriteAction(path="big", data=b""),
            MoveAction(source="big", target="b"),
        ):
            with pytest.raises(Rejected):
                apply(root, calls, action)
    finally:
        settings.LOOM.snapshot_max_bytes = was
    assert (root / "big").stat().st_size == 11
