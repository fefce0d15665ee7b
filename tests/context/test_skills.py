"""Skills: finding them in folders with any contents, and describing them within limits."""

import os
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from conversations.agent.files.skills import find_skills
from conversations.agent.files.text_files import read_file
from conversations.agent.window.system_prompt import HEADING, describe_skills


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def write_skill(root: Path, folder: str, text: str | bytes, *, name: str = "SKILL.md") -> Path:
    path = root / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def described(root: Path) -> list[tuple[str, str]]:
    return [(skill.name, skill.description) for skill in find_skills(root)]


def test_skills_of_both_folders_are_listed_by_name(root: Path) -> None:
    write_skill(root, "skills/weeding", "---\nname: weeding\ndescription: Pull weeds.\n---\nBody")
    write_skill(root, ".claude/skills/roses", "---\nname: roses\ndescription: Cut roses.\n---\n")
    assert described(root) == [("roses", "Cut roses."), ("weeding", "Pull weeds.")]
    assert describe_skills(root) == f"{HEADING}\n- roses: Cut roses.\n- weeding: Pull weeds."


def test_folder_without_skills_gives_no_index(root: Path) -> None:
    assert describe_skills(root) == ""
    assert describe_skills(root / "missing") == ""
    (root / "skills").write_text("a file")
    assert describe_skills(root) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Pruning\n\nCut it.", ("odd", "Pruning")),
        ("", ("odd", "")),
        ("---\nname: x\ndescription: Use when: always\n---\n", ("x", "Use when: always")),
        ("---\nname: [1\ndescription: broken list\n---\nBody", ("[1", "broken list")),
        ("---\n- a\n- b\n---\nThe body.", ("odd", "The body.")),
        ("---\nname:\ndescription:\n---\nThe body.", ("odd", "The body.")),
        ("---\nname: 12\ndescription: 2026-01-01\n---\n", ("12", "2026-01-01")),
        ("---\ndescription: >\n  Two\n  lines.\n---\n", ("odd", "Two lines.")),
        ("---\nname: never closed\n", ("odd", "---")),
        ("\ufeff---\r\nname: dos\r\ndescription: Ends.\r\n---\r\n", ("dos", "Ends.")),
        ("---\na: &a [x, x]\nb: [*a, *a]\nname: *a\ndescription: d\n---\n", ("odd", "d")),
        ("---\nname: " + "n" * 500 + "\ndescription: d\n---\n", ("n" * 63 + "…", "d")),
        ("---\n" + "[" * 5000 + "\n---\n", ("odd", "")),
    ],
)
def test_front_matter_is_read_even_if_it_is_malformed(
    root: Path, text: str, expected: tuple[str, str]
) -> None:
    write_skill(root, "skills/odd", text)
    assert described(root) == [expected]


def test_skill_in_the_first_folder_replaces_another_of_its_name(root: Path) -> None:
    write_skill(root, "skills/a", "---\nname: same\ndescription: second\n---\n")
    write_skill(root, ".claude/skills/b", "---\nname: same\ndescription: first\n---\n")
    assert described(root) == [("same", "first")]


def test_skill_for_people_only_is_not_offered(root: Path) -> None:
    write_skill(root, "skills/a", "---\nname: a\ndisable-model-invocation: true\n---\n")
    assert [skill.is_offered for skill in find_skills(root)] == [False]
    assert describe_skills(root) == ""


def test_links_are_followed_only_within_the_workspace(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "elsewhere"
    write_skill(secret, "s", "---\nname: secret\n---\n")
    write_skill(root, "tools/inside", "---\nname: inside\n---\n")
    (root / "skills").mkdir()
    (root / "skills/out").symlink_to(secret / "s")
    (root / "skills/in").symlink_to(root / "tools/inside")
    (root / "skills/loop").symlink_to(root / "skills/loop")
    (root / "skills/file").mkdir()
    (root / "skills/file/SKILL.md").symlink_to(secret / "s/SKILL.md")
    (root / ".claude").symlink_to(secret)
    write_skill(secret, "skills/far", "---\nname: far\n---\n")
    assert [skill.name for skill in find_skills(root)] == ["inside"]


def test_files_that_are_not_text_are_omitted(root: Path) -> None:
    for name in ("pipe", "folder", "binary", "forbidden"):
        (root / "skills" / name).mkdir(parents=True)
    os.mkfifo(root / "skills/pipe/SKILL.md")
    (root / "skills/folder/SKILL.md").mkdir()
    write_skill(root, "skills/binary", b"\x7fELF\0\0")
    write_skill(root, "skills/fine", "Fine.")
    assert [skill.name for skill in find_skills(root)] == ["fine"]


def test_index_stays_within_its_limits(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(9):
        text = f"---\ndescription: {'long words ' * 20}\n---\n"
        write_skill(root, f"skills/s{number}", text)
    monkeypatch.setattr(settings.LOOM, "max_skills", 6)
    monkeypatch.setattr(settings.LOOM, "skill_index_chars", 500)
    lines = describe_skills(root).splitlines()[1:]
    assert [line[:4] for line in lines[:6]] == [f"- s{n}" for n in range(6)]
    assert len("".join(lines[:6])) <= 500 + 6 * 4
    assert lines[3:6] == ["- s3", "- s4", "- s5"]
    assert lines[6] == "(3 more; `load_skill` names them all.)"


def test_skill_file_is_read_again_only_if_it_changed(root: Path) -> None:
    path = write_skill(root, "skills/a", "---\ndescription: one\n---\n")
    assert described(root) == [("a", "one")]
    opened: list[Any] = []
    with watching_opens(opened):
        assert described(root) == [("a", "one")]
    assert not [name for name in opened if "SKILL" in str(name)]
    path.write_text("---\ndescription: two\n---\n")
    assert described(root) == [("a", "two")]


class watching_opens:
    """Records the files that the process opens in the ``with`` block."""

    def __init__(self, opened: list[Any]) -> None:
        self._opened = opened

    def __enter__(self) -> None:
        self._open = os.open

        def noting(path: Any, *args: Any, **kwargs: Any) -> int:
            self._opened.append(path)
            return self._open(path, *args, **kwargs)

        os.open = noting  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        os.open = self._open


def test_long_skill_is_cut_between_two_characters(root: Path) -> None:
    write_skill(root, "skills/a", "ä" * 100)
    [skill] = find_skills(root)
    file = read_file(root, skill.path, limit=51)
    assert file is not None
    assert (file.text, file.is_cut, file.size) == ("ä" * 25, True, 200)
