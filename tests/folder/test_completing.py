"""Searching files by a part of their path."""

import os
from pathlib import Path

import pytest

from conversations.agent.files import searching
from conversations.agent.files.searching import find_files
from conversations.domain.errors import Rejected


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    searching._listings._values.clear()


def fill(root: Path, *paths: str) -> None:
    for age, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("")
        os.utime(root / path, (1_000_000 - age, 1_000_000 - age))


def test_names_rank_above_folders_and_substrings_above_scattered_letters(
    tmp_path: Path,
) -> None:
    fill(
        tmp_path,
        "peas/bean_plan.py",
        "plan/notes.md",
        "old_plan.md",
        "plan.md",
        "p/l/a/n.txt",
        "pel_ana_n",
        "other.txt",
    )
    assert find_files(tmp_path, "plan")[0] == [
        "plan.md",
        "old_plan.md",
        "peas/bean_plan.py",
        "plan/notes.md",
        "pel_ana_n",
        "p/l/a/n.txt",
    ]
    assert find_files(tmp_path, "PEAS/Plan")[0] == ["peas/bean_plan.py"]


def test_without_a_query_the_newest_files_come_first(tmp_path: Path) -> None:
    fill(tmp_path, "z.txt", "a.txt", "m.txt")
    assert find_files(tmp_path, " ", limit=2)[0] == ["z.txt", "a.txt"]


def test_ignored_heavy_linked_and_deceptive_names_are_left_out(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    fill(inside, "a.txt", "built/a.o", "node_modules/a.js", ".git/a", "a\u202etxt", 'a"b', "a\nb")
    fill(outside, "a_secret.txt")
    (inside / ".gitignore").write_text("built/\n")
    (inside / "link").symlink_to(outside)
    (inside / "a_link.txt").symlink_to(outside / "a_secret.txt")
    assert find_files(inside, "a")[0] == ["a.txt"]


def test_the_result_says_if_a_folder_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, *(f"{number}.txt" for number in range(6)))
    assert not find_files(tmp_path, "")[1]
    searching._listings._values.clear()
    monkeypatch.setattr(searching, "MAX_PATHS", 5)
    found = find_files(tmp_path, "")
    assert found[1]
    assert len(found[0]) == 5


def test_a_query_can_name_a_folder_inside_one_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "inside"
    fill(inside, "a/1.txt", "a/2.txt", "z/plan.md", "z/b/plan.md", ".git/plan", "node_modules/plan")
    fill(tmp_path, "plan.md")
    monkeypatch.setattr(searching, "MAX_PATHS", 2)
    assert find_files(inside, "plan")[0] == []
    assert find_files(inside, "z/pla")[0] == ["z/plan.md", "z/b/plan.md"]
    assert find_files(inside, "z/")[0]
    assert find_files(inside, "b/pla", path="z")[0] == ["z/b/plan.md"]
    for query in ("../plan", "/plan", ".git/plan", "node_modules/plan", "gone/plan", "\0/plan"):
        assert find_files(inside, query)[0] == [], query


def test_a_folder_is_not_read_again_for_every_keystroke(tmp_path: Path) -> None:
    fill(tmp_path, "a.txt")
    assert find_files(tmp_path, "")[0] == ["a.txt"]
    fill(tmp_path, "b.txt")
    assert find_files(tmp_path, "")[0] == ["a.txt"]
    for number in range(searching.MAX_FOLDERS_CACHED):
        (tmp_path / f"folder{number}").mkdir()
        find_files(tmp_path / f"folder{number}", "")
    assert "b.txt" in find_files(tmp_path, "")[0]


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected):
        find_files(tmp_path / "gone", "a")
