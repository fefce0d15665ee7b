"""Reading, replacing, removing and moving files that lie below a folder."""

import os
import resource
import stat
from contextlib import suppress
from pathlib import Path
from threading import Barrier, Thread
from time import monotonic

import pytest
from django.conf import settings

from conversations.agent.files import confined, paths
from conversations.agent.files.confined import content_digest
from conversations.agent.files.walking import FolderWalk
from conversations.domain.errors import Rejected


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    file = tmp_path / "outside/secret.txt"
    file.parent.mkdir()
    file.write_text("secret")
    return file


def read(root: Path, path: str) -> bytes:
    return confined.read_bytes(root, path, limit=1000).data


def test_paths_may_be_relative_absolute_or_links_that_stay_inside(
    root: Path,
) -> None:
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/c.txt").write_text("words")
    (root / "link").symlink_to("a/b")
    (root / "other").symlink_to(root / "link/c.txt")
    for path in ("a/b/c.txt", "./a//b/../b/c.txt", str(root / "a/b/c.txt"), "link/c.txt", "other"):
        assert read(root, path) == b"words", path
    found = confined.stat_file(root, "other")
    assert found is not None
    assert (found.path, found.kind, found.size) == ("a/b/c.txt", "file", 5)
    assert confined.stat_file(root, "a/none/c.txt") is None


def test_only_the_beginning_of_a_long_file_is_read(root: Path) -> None:
    (root / "long").write_bytes(b"x" * 5000)
    content = confined.read_bytes(root, "long", limit=10)
    assert (content.data, content.found.size, content.is_cut) == (b"x" * 10, 5000, True)


def test_a_new_file_gets_its_folders_and_the_usual_permissions(root: Path) -> None:
    confined.replace_file(root, "a/b/c.txt", b"words")
    assert (root / "a/b/c.txt").read_bytes() == b"words"
    usual = root / "usual"
    usual.touch()
    assert (root / "a/b/c.txt").stat().st_mode == usual.stat().st_mode
    assert os.listdir(root / "a/b") == ["c.txt"]


def test_a_replaced_file_keeps_its_permissions_but_not_setuid(root: Path) -> None:
    file = root / "run.sh"
    file.write_text("old")
    file.chmod(0o4750)
    confined.replace_file(root, "run.sh", b"new")
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"new", 0o750)


def test_writing_through_a_link_changes_its_target(root: Path) -> None:
    (root / "real.txt").write_text("old")
    (root / "link").symlink_to("real.txt")
    confined.replace_file(root, "link", b"new")
    assert (root / "link").is_symlink()
    assert (root / "real.txt").read_bytes() == b"new"


def test_replacing_a_hard_link_does_not_change_the_other_name(root: Path, outside: Path) -> None:
    os.link(outside, root / "inside.txt")
    confined.replace_file(root, "inside.txt", b"changed")
    assert outside.read_text() == "secret"
    assert read(root, "inside.txt") == b"changed"


def test_a_change_fails_unless_the_content_is_the_expected_one(root: Path) -> None:
    file = root / "a.txt"
    file.write_text("old")
    for expect in ("", content_digest(b"other")):
        with pytest.raises(confined.FileConflict):
            confined.replace_file(root, "a.txt", b"new", expect=expect)
        with pytest.raises(confined.FileConflict):
            confined.remove(root, "a.txt", expect=expect)
    assert file.read_text() == "old"
    with pytest.raises(confined.FileConflict, match="removed"):
        confined.replace_file(root, "none.txt", b"new", expect=content_digest(b"old"))
    confined.replace_file(root, "a.txt", b"new", expect=content_digest(b"old"))
    confined.replace_file(root, "b.txt", b"new", expect=confined.NO_FILE)
    confined.remove(root, "a.txt", expect=content_digest(b"new"))
    assert os.listdir(root) == ["b.txt"]


def test_links_and_empty_folders_can_be_removed(root: Path, outside: Path) -> None:
    (root / "link").symlink_to(outside)
    (root / "empty").mkdir()
    (root / "full/of").mkdir(parents=True)
    confined.remove(root, "link")
    confined.remove(root, "empty")
    with pytest.raises(Rejected, match="not empty"):
        confined.remove(root, "full")
    with pytest.raises(paths.MissingFile, match="none does not exist"):
        confined.remove(root, "none")
    assert os.listdir(root) == ["full"]
    assert outside.read_text() == "secret"


@pytest.mark.parametrize("is_known", [True, False])
def test_moving_a_file_never_overwrites_another(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    if not is_known:  # a kernel or file system without renameat2
        monkeypatch.setattr("conversations.agent.files.paths._renameat2", lambda: None)
    (root / "a.txt").write_text("a")
    (root / "b.txt").write_text("b")
    (root / "folder/full").mkdir(parents=True)
    (root / "other").mkdir()
    for source, target in (("a.txt", "b.txt"), ("a.txt", "other"), ("folder", "other")):
        with pytest.raises(Rejected, match="nothing is overwritten"):
            confined.rename(root, source, target)
    with pytest.raises(Rejected, match="into itself"):
        confined.rename(root, "folder", "folder/full/er")
    with pytest.raises(paths.MissingFile):
        confined.rename(root, "none", "new/none")
    assert not (root / "new").exists()
    confined.rename(root, "a.txt", "new/place/c.txt")
    confined.rename(root, "folder", "new/folder")
    assert (root / "new/place/c.txt").read_text() == "a"
    assert sorted(os.listdir(root)) == ["b.txt", "new", "other"]
    assert os.listdir(root / "new/folder") == ["full"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", "is empty"),
        ("a\0b", "NUL"),
        ("x" * 256, "too long"),
        ("é" * 128, "too long"),
        ("x/" * 3000, "too long"),
        ("a\ud800", "file names cannot have"),
        ("../outside/secret.txt", "outside the workspace"),
        ("/etc/passwd", "outside the workspace"),
        (".", "a folder"),
        ("loop", "leads nowhere"),
        ("pipe", "a pipe"),
        ("file/below", "not a folder"),
    ],
)
def test_unusable_paths_are_refused_with_the_reason(root: Path, path: str, said: str) -> None:
    (root / "loop").symlink_to("loop")
    (root / "file").touch()
    os.mkfifo(root / "pipe")
    with pytest.raises(Rejected, match=said):
        confined.read_bytes(root, path, limit=10)
    with pytest.raises(Rejected):
        confined.replace_file(root, path, b"x")


def test_control_and_bidi_characters_in_names_are_shown_escaped(root: Path) -> None:
    name = "a\n\u202eb\udcff.txt"
    (root / name).write_text("words")
    assert read(root, name) == b"words"
    confined.remove(root, name)
    with pytest.raises(Rejected) as error:
        read(root, name)
    assert error.value.message == r"a\n\u202eb\udcff.txt does not exist."


@pytest.mark.parametrize("path", [".git/config", ".GIT/hooks/x", "sub/.git/HEAD", ".git", "gate/x"])
def test_gits_own_data_can_be_read_but_not_changed(root: Path, path: str) -> None:
    (root / ".git/hooks").mkdir(parents=True)
    (root / ".git/config").write_text("[core]")
    (root / "gate").symlink_to(".git/hooks")
    (root / "plain.txt").touch()
    assert read(root, ".git/config") == b"[core]"
    for change in (
        lambda: confined.replace_file(root, path, b"x"),
        lambda: confined.remove(root, path),
        lambda: confined.rename(root, path, "elsewhere"),
        lambda: confined.rename(root, "plain.txt", path),
    ):
        with pytest.raises(Rejected, match="use git_command"):
            change()
    assert read(root, ".git/config") == b"[core]"


def test_the_servers_own_data_cannot_be_accessed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = root / "var/loom"
    data.mkdir(parents=True)
    (data / "secret_key").write_text("secret")
    (root / "gate").symlink_to("var/loom")
    os.link(data / "secret_key", root / "innocent.txt")
    monkeypatch.setattr(settings.LOOM, "data_dir", data)

    def walk_through(path: str) -> FolderWalk:
        return FolderWalk(root=root, path=path, with_ignored=True, deadline=monotonic() + 60)

    for path in ("var/loom/secret_key", "gate/secret_key", "innocent.txt", "gate/new"):
        with pytest.raises(confined.OutsideFolder):
            confined.read_bytes(root, path, limit=10)
    for change in (
        lambda: confined.replace_file(root, "var/loom/x", b""),
        lambda: confined.remove(root, "var/loom/secret_key"),
        lambda: confined.rename(root, "var", "other"),
        lambda: confined.rename(root, "var/loom", "other"),
        lambda: list(walk_through("gate").entries()),
    ):
        with pytest.raises(confined.OutsideFolder):
            change()
    assert list(walk_through("var").entries()) == []
    # Workspaces usually lie inside the data folder, but they are not the server's own data.
    (data / "workspaces/garden").mkdir(parents=True)
    confined.replace_file(data / "workspaces/garden", "a.txt", b"words")
    assert read(data / "workspaces/garden", "a.txt") == b"words"


def test_a_failed_write_leaves_the_file_unchanged(root: Path) -> None:
    (root / "a.txt").write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        for path in ("a.txt", "new.txt"):
            with pytest.raises(Rejected, match="too large"):
                confined.replace_file(root, path, b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (root / "a.txt").read_text() == "old"
    assert os.listdir(root) == ["a.txt"]


def test_only_one_of_several_changes_to_the_same_content_succeeds(root: Path) -> None:
    """Therefore, writers that do not know of each other do not overwrite each other's words."""
    (root / "a.txt").write_text("")
    begin = Barrier(4)

    def add(name: str) -> None:
        begin.wait()
        for number in range(15):
            while True:
                now = read(root, "a.txt")
                with suppress(confined.FileConflict):
                    words = b"%s%d\n" % (name.encode(), number)
                    confined.replace_file(root, "a.txt", now + words, expect=content_digest(now))
                    break

    threads = [Thread(target=add, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (root / "a.txt").read_text().split()
    assert sorted(lines) == sorted(f"{name}{number}" for name in "abcd" for number in range(15))
