"""Reverting changes of files without overwriting changes by others."""

import os
import shutil
import stat
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from conversations.agent.undo import disk
from conversations.agent.undo.apply import MoveAction, RemoveAction, WriteAction, apply_changes
from conversations.agent.undo.records import (
    ChangeScope,
    begin_revert,
    complete_changes,
    finish_revert,
    mark_undone,
    recent_reverts,
    unfinished_reverts,
)
from conversations.agent.undo.revert import (
    READY,
    RevertResult,
    complete_reverts,
    plan_revert,
    revert_files,
)
from conversations.agent.undo.trees import watched
from conversations.agent.undo.versions import session_marks
from conversations.agent.window.messages import MessageCaps, join_pieces, make_piece
from conversations.domain.errors import Conflict, Rejected
from conversations.models import ChatEvent, FileChange, Run, Session, ToolCall
from tests.archive.turns import read_turns
from tests.properties import costly

from .conftest import Calls, command, crossing, cut_short, picture


def revert(
    session: Session, root: Path, *, replace: Collection[str] = (), **scope: Any
) -> RevertResult:
    return async_to_sync(revert_files)(
        session, root, scope=ChangeScope(**scope), actor_pk=session.owner_id, replace=replace,
        read=crossing, write=crossing,
    )  # fmt: skip


def put(root: Path, calls: Calls, *actions: Any, call: ToolCall | None = None) -> ToolCall:
    call = call or calls.make_call()
    async_to_sync(apply_changes)(root, actions, author=calls.author(call), write=crossing)
    return call


def last_revert() -> Any:
    return FileChange.objects.exclude(revert=None).order_by("-pk").first().revert.uuid


def test_changes_of_a_call_are_reverted(root: Path, calls: Calls) -> None:
    (root / "a").write_bytes(b"1")
    put(root, calls, WriteAction(path="a", data=b"2"))
    call = put(root, calls, WriteAction(path="a", data=b"3"), WriteAction(path="new/b", data=b"b"))
    done = revert(calls.session, root, call=call.uuid)
    assert (root / "a").read_bytes() == b"2"
    assert not (root / "new").exists()
    assert done.back == ["a", "new", "new/b"]
    assert not done.left


def test_session_is_reverted_restored_and_reverted_again(root: Path, calls: Calls) -> None:
    (root / "a").write_bytes(b"1")
    before = picture(root)
    put(root, calls, WriteAction(path="a", data=b"2"), WriteAction(path="new/b", data=b"b"))
    put(root, calls, WriteAction(path="a", data=b"3"), RemoveAction(path="new/b"))
    after = picture(root)
    revert(calls.session, root)
    assert picture(root) == before
    revert(calls.session, root, revert=last_revert())
    assert picture(root) == after
    revert(calls.session, root)
    assert picture(root) == before
    with pytest.raises(Rejected):
        revert(calls.session, root)


def test_undo_of_a_redo_is_an_undo(root: Path, calls: Calls) -> None:
    session = calls.session
    (root / "a").write_bytes(b"1")
    (root / "b").write_bytes(b"1")
    put(root, calls, WriteAction(path="a", data=b"2"))
    call = put(root, calls, WriteAction(path="a", data=b"3"), WriteAction(path="b", data=b"2"))
    for scope, left in (({"call": call.uuid}, {"a": "changed"}), ({}, {})):
        before_undo = picture(root), session_marks(session.pk)
        revert(session, root, **scope)
        undone = picture(root), session_marks(session.pk)
        assert undone[1] == left
        for _ in range(3):
            revert(session, root, revert=last_revert())
            assert (picture(root), session_marks(session.pk)) == before_undo
            plans = plan_revert(session.pk, root, scope=ChangeScope())
            assert {plan.state for plan in plans} == {READY}
            revert(session, root, revert=last_revert())
            assert (picture(root), session_marks(session.pk)) == undone
        assert recent_reverts(session.pk)[0].uuid == last_revert()
    assert plan_revert(session.pk, root, scope=ChangeScope()) == []
    with pytest.raises(Rejected):
        revert(session, root)


def test_file_changed_afterwards_is_reverted_only_if_it_is_named(root: Path, calls: Calls) -> None:
    (root / "a").write_bytes(b"1")
    put(root, calls, WriteAction(path="a", data=b"2"), WriteAction(path="b", data=b"b"))
    (root / "a").write_bytes(b"theirs")
    done = revert(calls.session, root)
    assert done.back == ["b"]
    assert done.left == {"a": "It was changed afterwards."}
    assert (root / "a").read_bytes() == b"theirs"
    with pytest.raises(Rejected, match=r"Nothing can be restored\. a: It was changed afterwards\."):
        revert(calls.session, root)
    assert revert(calls.session, root, replace=["a"]).back == ["a"]
    assert (root / "a").read_bytes() == b"1"
    revert(calls.session, root, revert=last_revert())
    assert (root / "a").read_bytes() == b"theirs"


def revert_while(
    calls: Calls, root: Path, at: Callable[..., Any], somebody: Callable[[], Any]
) -> RevertResult:
    """Revert the session's changes and call ``somebody`` right before ``at``."""

    async def write(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if function is at:
            somebody()
        return await crossing(function, *args, **kwargs)

    session = calls.session
    return async_to_sync(revert_files)(
        session, root, scope=ChangeScope(), actor_pk=session.owner_id, replace=(),
        read=crossing, write=write,
    )  # fmt: skip


@pytest.mark.parametrize("is_link", [False, True])
def test_file_created_during_a_revert_is_not_overwritten(
    root: Path, calls: Calls, is_link: bool
) -> None:
    gone = root / "gone"
    gone.symlink_to("other") if is_link else gone.write_bytes(b"old")
    (root / "back").write_bytes(b"old")
    command(root, calls, lambda: (gone.unlink(), (root / "back").unlink()))
    done = revert_while(calls, root, begin_revert, lambda: gone.write_bytes(b"theirs"))
    assert (done.back, done.left) == (["back"], {"gone": "It was changed just now."})
    assert gone.read_bytes() == b"theirs"
    assert sorted(path.name for path in root.iterdir()) == ["back", "gone"]
    # The file is not recorded, so the revert of the undo does not touch it either.
    assert revert(calls.session, root, revert=last_revert()).back == ["back"]
    assert [path.name for path in root.iterdir()] == ["gone"]


def test_file_written_during_a_revert_is_not_part_of_it(root: Path, calls: Calls) -> None:
    (root / "a").write_bytes(b"1")
    put(root, calls, WriteAction(path="a", data=b"2"), WriteAction(path="b", data=b"b"))
    done = revert_while(calls, root, begin_revert, lambda: (root / "a").write_bytes(b"theirs"))
    assert (done.back, done.left) == (["b"], {"a": "It was changed just now."})
    assert revert(calls.session, root, revert=last_revert()).back == ["b"]
    assert (root / "a").read_bytes() == b"theirs"


def test_removal_is_recorded_if_somebody_takes_the_freed_name(
    root: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_bytes(b"1")
    command(root, calls, lambda: ((root / "a").unlink(), (root / "a").symlink_to("other")))
    remove = disk.remove_entry

    def remove_and_write(folder: Path, path: str) -> None:
        remove(folder, path)
        (root / "a").write_bytes(b"theirs")

    monkeypatch.setattr(disk, "remove_entry", remove_and_write)
    assert revert(calls.session, root).left == {"a": "It was changed just now."}
    assert (root / "a").read_bytes() == b"theirs"
    [change] = FileChange.objects.exclude(revert=None)
    assert stat.S_ISLNK(change.before_mode or 0)
    assert (change.after_mode, change.done_at is None) == (None, False)


def test_later_call_of_the_session_is_not_overwritten(root: Path, calls: Calls) -> None:
    (root / "a").write_bytes(b"1")
    first = put(root, calls, WriteAction(path="a", data=b"2"))
    second = put(root, calls, WriteAction(path="a", data=b"3"))
    with pytest.raises(Rejected):
        revert(calls.session, root, call=first.uuid)
    revert(calls.session, root, call=second.uuid)
    revert(calls.session, root, call=first.uuid)
    assert (root / "a").read_bytes() == b"1"


def test_change_between_two_calls_is_not_lost(root: Path, calls: Calls) -> None:
    (root / "a").write_bytes(b"1")
    run = calls.make_run()
    put(root, calls, WriteAction(path="a", data=b"2"), call=calls.make_call(run=run))
    (root / "a").write_bytes(b"theirs")
    put(root, calls, WriteAction(path="a", data=b"3"), call=calls.make_call(run=run))
    with pytest.raises(Rejected):
        revert(calls.session, root, run=run.uuid)


def test_file_that_two_sessions_changed_is_left_as_it_is(
    root: Path, calls: Calls, other_session: Session
) -> None:
    others = Calls(other_session)
    (root / "a").write_bytes(b"1")

    mine, theirs = calls.author(), others.author()

    async def run() -> None:
        async with watched(root, author=mine, write=crossing):
            await apply_changes(
                root, [WriteAction(path="a", data=b"theirs")], author=theirs, write=crossing
            )
            (root / "mine").write_bytes(b"mine")

    async_to_sync(run)()
    done = revert(calls.session, root)
    assert done.back == ["mine"]
    assert "Another session" in done.left["a"]


def test_revert_is_refused_during_a_run(root: Path, calls: Calls) -> None:
    call = put(root, calls, WriteAction(path="a", data=b"1"))
    Run.objects.filter(pk=call.run_id).update(state="running")
    with pytest.raises(Conflict):
        revert(calls.session, root)
    assert (root / "a").exists()
    assert not FileChange.objects.exclude(revert=None).exists()


def test_folder_with_a_new_file_stays(root: Path, calls: Calls) -> None:
    put(root, calls, WriteAction(path="new/a", data=b"1"))
    (root / "new/theirs").write_bytes(b"theirs")
    done = revert(calls.session, root)
    assert done.back == ["new/a"]
    assert done.left == {"new": "The folder is not empty."}
    (root / "new/theirs").unlink()
    assert revert(calls.session, root).back == ["new"]


def test_file_too_large_to_be_stored_is_reported_and_left(
    root: Path, calls: Calls, settings: Any
) -> None:
    (root / "big").write_bytes(b"x" * 200)
    settings.LOOM.snapshot_max_file_bytes, was = 100, settings.LOOM.snapshot_max_file_bytes
    try:

        def work() -> None:
            (root / "big").unlink()
            (root / "made").write_bytes(b"y" * 200)

        command(root, calls, work)
        with pytest.raises(Rejected):
            revert(calls.session, root)
        done = revert(calls.session, root, replace=["big", "made"])
        assert done.back == ["made"]
        assert "too large" in done.left["big"]
        revert(calls.session, root, revert=last_revert())
    finally:
        settings.LOOM.snapshot_max_file_bytes = was
    assert (root / "made").read_bytes() == b"y" * 200


def test_link_on_the_path_is_not_followed(root: Path, calls: Calls, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "in").mkdir()
    (root / "in/a").write_bytes(b"1")
    put(root, calls, WriteAction(path="in/a", data=b"2"))
    shutil.rmtree(root / "in")
    (outside / "a").write_bytes(b"2")
    os.symlink(outside, root / "in")
    with pytest.raises(Rejected):
        revert(calls.session, root)
    assert not revert_all(calls.session, root).back
    assert (outside / "a").read_bytes() == b"2"


def revert_all(session: Session, root: Path) -> RevertResult:
    """Revert all changes, and replace files that were changed afterwards."""
    paths = FileChange.objects.filter(revert=None).values_list("path", flat=True)
    return revert(session, root, replace=list(paths))


def test_people_and_the_model_are_told_about_a_revert(root: Path, calls: Calls) -> None:
    put(root, calls, WriteAction(path="a.py", data=b"1"))
    revert(calls.session, root)
    event = ChatEvent.objects.get()
    assert '"code": "reverted"' in event.payload or '"code":"reverted"' in event.payload
    assert "Restored 1 file to the state before this session." in event.payload
    [turn] = read_turns(calls.session.pk)
    assert turn.role == "system"
    piece = make_piece(turn, model="any", caps=piece_caps())
    [message] = join_pieces([piece])
    assert message["role"] == "user"
    assert "a.py" in message["content"][0]["text"]
    assert not make_piece(replace(turn, metadata="{}"), model="any", caps=piece_caps()).blocks


def complete() -> list[Any]:
    return async_to_sync(complete_reverts)(read=crossing, write=crossing)


CUTS = [mark_undone, complete_changes, finish_revert]


@pytest.mark.parametrize("at", CUTS)
def test_interrupted_undo_is_completed_and_can_be_reverted(
    root: Path, calls: Calls, at: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conversations.agent.undo.revert.BATCH_ROWS", 2)
    (root / "a").write_bytes(b"1")
    put(root, calls, WriteAction(path="a", data=b"2"), WriteAction(path="new/b", data=b"b"))
    after = picture(root)
    async_to_sync(cut_short)(calls.session, root, at)
    assert (root / "a").read_bytes() == b"1"
    assert not ChatEvent.objects.exists()
    [(session_pk, appended)] = complete()
    assert (session_pk, len(appended.rows)) == (calls.session.pk, 1)
    payload = ChatEvent.objects.get().payload
    assert "Restored 2 files and 1 folder to the state before this session." in payload
    assert "The person did this" in read_turns(calls.session.pk)[0].content
    assert not session_marks(calls.session.pk)
    assert complete() == []
    [past] = recent_reverts(calls.session.pk)
    # The revert of the undo is interrupted, too.
    async_to_sync(cut_short)(calls.session, root, at, revert=past.uuid)
    assert len(complete()) == 1
    assert picture(root) == after
    payload = ChatEvent.objects.order_by("seq")[1].payload
    assert "Restored 2 files and 1 folder to the state before the undo." in payload
    assert session_marks(calls.session.pk) == {"a": "changed", "new/b": "new"}
    assert len(recent_reverts(calls.session.pk)) == 1
    revert(calls.session, root)
    assert sorted(path.name for path in root.iterdir()) == ["a"]


def test_interrupted_undo_leaves_files_that_were_not_restored(root: Path, calls: Calls) -> None:
    for name in "abc":
        (root / name).write_bytes(b"1")
    call = put(root, calls, *(WriteAction(path=name, data=b"2") for name in "abc"))
    put(root, calls, WriteAction(path="d", data=b"2"))
    async_to_sync(cut_short)(calls.session, root, mark_undone, call=call.uuid)
    (root / "b").write_bytes(b"2")  # as if the undo had not touched it
    (root / "c").write_bytes(b"theirs")
    put(root, calls, WriteAction(path="e", data=b"2"))
    complete()
    payload = ChatEvent.objects.get().payload
    assert "Restored 1 file to the state before this call. 2 files were left unchanged." in payload
    assert session_marks(calls.session.pk) == dict.fromkeys("bc", "changed") | dict.fromkeys(
        "de", "new"
    )
    assert revert(calls.session, root, call=call.uuid).left == {"c": "It was changed afterwards."}
    assert [(root / name).read_bytes() for name in "abc"] == [b"1", b"1", b"theirs"]


def test_undo_that_was_interrupted_before_any_change_is_dropped(root: Path, calls: Calls) -> None:
    put(root, calls, WriteAction(path="a", data=b"2"))
    async_to_sync(cut_short)(calls.session, root, mark_undone)
    (root / "a").write_bytes(b"2")
    (root / "a").chmod(0o644)
    run = calls.make_run()
    Run.objects.filter(pk=run.pk).update(state="running")
    assert complete() == []
    assert FileChange.objects.filter(done_at=None).exists()  # because a run is active
    Run.objects.filter(pk=run.pk).update(state="completed")
    assert complete() == []
    assert not FileChange.objects.filter(done_at=None).exists()
    assert not ChatEvent.objects.exists()
    assert revert(calls.session, root).back == ["a"]


def test_folders_are_not_counted_as_files(root: Path, calls: Calls) -> None:
    put(
        root,
        calls,
        WriteAction(path="new/deep/a.py", data=b"1"),
        WriteAction(path="b.py", data=b"1"),
    )
    revert(calls.session, root)
    event = ChatEvent.objects.get()
    assert "Restored 2 files and 2 folders to the state before this session." in event.payload
    [past] = recent_reverts(calls.session.pk)
    assert past.what == "2 files and 2 folders"
    revert(calls.session, root, revert=past.uuid)
    assert (
        "2 files and 2 folders to the state before" in ChatEvent.objects.order_by("seq")[1].payload
    )


def test_revert_of_a_single_folder_counts_one_folder(root: Path, calls: Calls) -> None:
    (root / "bed").mkdir()
    put(root, calls, RemoveAction(path="bed"))
    revert(calls.session, root)
    assert "Restored 1 folder to the state before this session." in ChatEvent.objects.get().payload
    [past] = recent_reverts(calls.session.pk)
    assert past.what == "1 folder"


def piece_caps() -> MessageCaps:
    return MessageCaps(message=1000, result=1000)


NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "café", "x y"])
TEXTS = st.sampled_from([b"", b"1", b"22", b"\x00\xff"])
TOOL = st.one_of(
    st.builds(WriteAction, path=NAMES, data=TEXTS),
    st.builds(RemoveAction, path=NAMES | st.sampled_from(["d", "d/e"])),
    st.builds(
        MoveAction, source=NAMES | st.just("d"), target=NAMES | st.sampled_from(["f", "d/f"])
    ),
)
WRITE, LINK, UNLINK, MODE, TREE, RENAME = ["write", "link", "unlink", "mode", "tree", "rename"]
SHELL = st.lists(
    st.tuples(st.sampled_from([WRITE, LINK, UNLINK, MODE, TREE, RENAME]), NAMES, NAMES, TEXTS),
    min_size=1,
    max_size=6,
)


def shell(root: Path, work: list[tuple[str, str, str, bytes]]) -> None:
    """Do the work of a command, and skip the steps that fail."""
    for what, name, other, text in work:
        path = root / name
        try:
            if what == WRITE:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text)
            elif what == LINK:
                path.symlink_to(other)
            elif what == UNLINK:
                path.unlink()
            elif what == MODE:
                (path if text else path.parent).chmod(0o710 if text else 0o550)
            elif what == TREE:
                shutil.rmtree(path.parent if path.parent != root else path)
            else:
                path.rename(root / other)
        except OSError:
            continue


@costly
@given(steps=st.lists(TOOL | SHELL, min_size=1, max_size=8))
def test_any_changes_are_reverted_byte_for_byte(root: Path, calls: Calls, steps: list[Any]) -> None:
    reset(root)
    FileChange.objects.all().delete()
    before = picture(root)
    for step in steps:
        if isinstance(step, list):
            command(root, calls, lambda step=step: shell(root, step))
            continue
        try:
            put(root, calls, step)
        except Rejected:
            continue
    if picture(root) == before:
        return
    done = revert(calls.session, root)
    assert not done.left
    assert picture(root) == before
    revert(calls.session, root, revert=last_revert())
    revert(calls.session, root)
    assert picture(root) == before


def reset(root: Path) -> None:
    for folder, _, _ in os.walk(root):
        os.chmod(folder, 0o755)  # so that its entries can be removed
    for entry in root.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    (root / "d/e").mkdir(parents=True)
    (root / "d/a").write_bytes(b"old")
    (root / "d/e/a").write_bytes(b"older")
    (root / "a").write_bytes(b"oldest")
    (root / "a").chmod(0o640)
    os.symlink("a", root / "b")
    assert stat.S_ISLNK((root / "b").lstat().st_mode)


@pytest.mark.django_db
def test_unfinished_reverts_are_found_with_an_index() -> None:
    if connection.vendor != "sqlite":
        pytest.skip("asks SQLite how it looks")
    with CaptureQueriesContext(connection) as asked:
        unfinished_reverts()
    for query in asked:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
            assert "file_change_begun" in str(cursor.fetchall())
