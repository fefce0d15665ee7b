"""Listings of folders: finding a command's changes and storing former contents."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from conversations.agent.undo import disk
from conversations.agent.undo import listing as listings
from conversations.agent.undo.disk import EntryChange, FileState, read_state
from conversations.agent.undo.listing import make_listing
from conversations.agent.undo.records import record_changes
from conversations.agent.undo.trees import complete_all, watched
from conversations.archive.blobs import blob_path, put_blob, read_blob
from conversations.models import FileChange, ToolCall

from .conftest import Calls, command, crossing


def paths() -> list[str]:
    return list(FileChange.objects.values_list("path", flat=True))


def fill(root: Path) -> None:
    (root / "src/deep").mkdir(parents=True)
    (root / "src/a.py").write_bytes(b"a")
    (root / "src/deep/b.py").write_bytes(b"b")
    (root / "empty").mkdir()
    os.symlink("src/a.py", root / "link")


def test_all_changes_of_a_command_are_recorded(root: Path, calls: Calls) -> None:
    fill(root)

    def work() -> None:
        (root / "src/a.py").write_bytes(b"changed")
        (root / "src/deep/b.py").unlink()
        (root / "new/er").mkdir(parents=True)
        (root / "new/er/c.py").write_bytes(b"c")
        (root / "empty").rmdir()
        (root / "link").unlink()
        os.symlink("elsewhere", root / "link")
        (root / "src/deep").chmod(0o700)

    watch = command(root, calls, work)
    expected = ["empty", "link", "new", "new/er", "new/er/c.py", "src/a.py", "src/deep"]
    assert paths() == [*expected, "src/deep/b.py"]
    assert [change.path for change in watch.changes] == paths()
    assert read_blob(FileChange.objects.get(path="src/a.py").before) == b"a"
    assert read_blob(FileChange.objects.get(path="src/a.py").after) == b"changed"
    assert read_blob(FileChange.objects.get(path="link").before) == b"src/a.py"
    assert not ToolCall.objects.exclude(tree="").exists()


def test_changes_of_a_failed_or_cancelled_command_are_recorded(root: Path, calls: Calls) -> None:
    def fail() -> None:
        (root / "a").write_bytes(b"a")
        raise ValueError("it failed")

    with pytest.raises(ValueError, match="it failed"):
        command(root, calls, fail)

    async def cancelled() -> None:
        async with watched(root, author=author, write=crossing):
            (root / "b").write_bytes(b"b")
            begun.set()
            await asyncio.sleep(60)

    async def run() -> None:
        task = asyncio.create_task(cancelled())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    begun, author = asyncio.Event(), calls.author()
    async_to_sync(run)()
    assert paths() == ["a", "b"]


def test_file_is_read_again_only_if_it_may_have_changed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = disk.read_entry

    def counted(folder: int, name: str, **rest: Any) -> Any:
        read.append(name)
        return original(folder, name, **rest)

    monkeypatch.setattr(disk, "read_entry", counted)
    for name in ("old", "new"):
        (root / name).write_bytes(b"1")
    monkeypatch.setattr(listings, "FRESH_NS", -(10**18))  # the files are older than the listing
    make_listing(root)
    make_listing(root)
    assert read == ["new", "old"]
    monkeypatch.setattr(listings, "FRESH_NS", 10**18)  # the files are as new as the listing
    make_listing(root)
    assert len(read) == 4


def test_file_written_within_one_clock_tick_is_noticed(root: Path, calls: Calls) -> None:
    file = root / "a"
    file.write_bytes(b"one")
    told = file.stat()

    def work() -> None:
        with file.open("r+b") as opened:
            opened.write(b"two")
        os.utime(file, ns=(told.st_atime_ns, told.st_mtime_ns))

    command(root, calls, work)
    assert paths() == ["a"]


def test_removed_copy_is_made_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a").write_bytes(b"content of a")
    monkeypatch.setattr(listings, "FRESH_NS", -(10**18))
    monkeypatch.setattr(listings, "TOUCHED_NS", -1)
    digest = make_listing(root).entries["a"].digest
    blob_path(digest).unlink()
    make_listing(root)
    assert read_blob(digest) == b"content of a"


def test_large_files_are_listed_without_a_copy(
    root: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "small").write_bytes(b"1")
    (root / "middle").write_bytes(b"1" * 50)
    (root / "large").write_bytes(b"1" * 101)
    monkeypatch.setattr(settings.LOOM, "snapshot_max_file_bytes", 100)
    monkeypatch.setattr(settings.LOOM, "snapshot_max_bytes", 50)
    found = make_listing(root)
    assert {path: s.has_copy for path, s in found.entries.items() if path != "."} == {
        "small": True,
        "middle": False,
        "large": False,
    }


def test_unchanged_file_without_a_copy_is_no_change(
    root: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "large").write_bytes(b"1" * 101)
    monkeypatch.setattr(settings.LOOM, "snapshot_max_file_bytes", 100)
    before = make_listing(root)
    (root / "small").write_bytes(b"1")
    after = make_listing(root, earlier=before)
    assert before.entries["large"] == after.entries["large"]


def test_files_in_deep_folders_are_omitted_if_there_are_too_many(
    root: Path, calls: Calls, settings: Any
) -> None:
    (root / "heap").mkdir()
    for number in range(30):
        (root / "heap" / str(number)).write_bytes(b"")
    settings.LOOM.snapshot_max_files, was = 20, settings.LOOM.snapshot_max_files
    try:

        def work() -> None:
            (root / "heap/0").write_bytes(b"changed")
            (root / "seen").write_bytes(b"changed")

        watch = command(root, calls, work)
        removed = command(root, calls, lambda: shutil.rmtree(root / "heap"))
    finally:
        settings.LOOM.snapshot_max_files = was
    assert paths() == ["seen", "heap"]
    assert "unknown" in watch.note
    assert "unknown" in removed.note


def test_removal_of_a_special_file_is_reported_as_not_undoable(root: Path, calls: Calls) -> None:
    os.mkfifo(root / "pipe")
    command(root, calls, lambda: os.mkfifo(root / "other"))
    assert paths() == ["other"]
    reason = "what was there was too large to be stored, or was not a file."
    watch = command(root, calls, lambda: os.remove(root / "pipe"))
    assert watch.note == f"1 change cannot be undone: {reason}"
    os.mkfifo(root / "pipe")
    watch = command(root, calls, lambda: list(map(os.remove, (root / "pipe", root / "other"))))
    assert watch.note == f"2 changes cannot be undone: {reason}"


def test_data_folder_of_the_product_is_not_listed(root: Path, settings: Any) -> None:
    (root / "data").mkdir()
    (root / "data/secret_key").write_bytes(b"secret")
    settings.LOOM.data_dir, was = root / "data", settings.LOOM.data_dir
    try:
        assert "data/secret_key" not in make_listing(root).entries
    finally:
        settings.LOOM.data_dir = was


def test_changes_in_an_unreadable_folder_are_determined_later(root: Path, calls: Calls) -> None:
    """The same applies to a call that died with its process (see ``tests/crash``)."""
    (root / "a").write_bytes(b"a")
    away = root.with_name("away")

    def work() -> None:
        (root / "a").write_bytes(b"changed")
        root.rename(away)

    call = calls.make_call(state="running")
    watch = command(root, calls, work, call)
    assert "will be determined when the server starts next" in watch.note
    away.rename(root)
    async_to_sync(complete_all)(read=crossing, write=crossing)
    assert not paths()  # the call is still running
    ToolCall.objects.filter(pk=call.pk).update(state="interrupted")
    async_to_sync(complete_all)(read=crossing, write=crossing)
    async_to_sync(complete_all)(read=crossing, write=crossing)
    assert paths() == ["a"]
    assert read_blob(FileChange.objects.get().before) == b"a"


def test_unfinished_writes_of_a_dead_process_are_removed(root: Path, calls: Calls) -> None:
    (root / "a").write_bytes(b"old")
    call = calls.make_call(state="interrupted")
    after = FileState(mode=0o100644, digest=put_blob(b"new content"), size=11)
    before = read_state(root, "a")
    begun = [
        EntryChange(path="a", before=before, after=after),
        EntryChange(path="b", before=None, after=after),
    ]
    record_changes(author=calls.author(call), changes=begun)
    (root / "b").write_bytes(b"new content")
    draft, other = root / f".loom-{'a' * 16}.tmp", root / f".loom-{'b' * 16}.tmp"
    draft.write_bytes(b"new con")
    other.write_bytes(b"somebody's")
    async_to_sync(complete_all)(read=crossing, write=crossing)
    assert not draft.exists()
    assert other.exists()
    [row] = FileChange.objects.all()
    assert (row.path, row.done_at is not None) == ("b", True)
