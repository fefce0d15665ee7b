"""The system prompt: its parts, its stability and folders with odd contents."""

import os
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from conversations.agent.window.system_prompt import ARCHIVE, DATA, GUIDELINES, build_system_prompt


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def prompt(root: Path, **changes: Any) -> str:
    values: dict[str, Any] = {
        "workspace_name": "Garden",
        "root": root,
        "instructions": "",
        "reads_instruction_files": True,
    }
    return build_system_prompt(**(values | changes))


def added(root: Path, **changes: Any) -> str:
    """Return the part of the prompt that comes from the folder."""
    return prompt(root, **changes).removeprefix(prompt(root / "empty")).strip()


def test_prompt_explains_the_archive_and_the_treatment_of_data(root: Path) -> None:
    text = prompt(root, instructions="Be kind.\n")
    assert text == "\n\n".join(
        (GUIDELINES, ARCHIVE, DATA, "Workspace: Garden", "Instructions of the workspace:\nBe kind.")
    )
    for tool in ("conversation_recall", "session_state", "load_skill"):
        assert f"`{tool}`" in text


def test_same_folder_gives_the_same_bytes(root: Path) -> None:
    (root / "AGENTS.md").write_text("Use tabs.")
    (root / "skills/b").mkdir(parents=True)
    (root / "skills/b/SKILL.md").write_text("B")
    first = prompt(root)
    (root / "notes.txt").write_text("something else")
    assert prompt(root) == first


def test_instruction_files_come_before_the_skills(root: Path) -> None:
    (root / "CLAUDE.md").write_text("Use spaces.\n")
    (root / "AGENTS.md").write_text("Use tabs.\n")
    (root / "skills/b").mkdir(parents=True)
    (root / "skills/b/SKILL.md").write_text("Build it.")
    assert added(root).startswith(
        "Instructions from AGENTS.md in the workspace's folder:\nUse tabs.\n\n"
        "Instructions from CLAUDE.md in the workspace's folder:\nUse spaces.\n\nSkills"
    )
    assert added(root).endswith("\n- b: Build it.")


def test_instruction_files_can_be_switched_off(root: Path) -> None:
    (root / "AGENTS.md").write_text("Use tabs.")
    assert added(root, reads_instruction_files=False) == ""


@pytest.mark.parametrize("name", ["agents.md", "Claude.md", "AGENTS.MD"])
def test_other_spellings_of_the_file_names_are_found(root: Path, name: str) -> None:
    (root / name).write_text("Use tabs.")
    assert "Use tabs." in added(root)


@pytest.mark.parametrize("text", ["Use tabs.\n", "@AGENTS.md\n", "@./AGENTS.md", "AGENTS.md"])
def test_copy_of_the_other_file_is_included_once(root: Path, text: str) -> None:
    (root / "AGENTS.md").write_text("Use tabs.")
    (root / "CLAUDE.md").write_text(text)
    assert added(root) == "Instructions from AGENTS.md in the workspace's folder:\nUse tabs."


def test_link_to_the_other_file_is_included_once(root: Path) -> None:
    (root / "CLAUDE.md").write_text("Use tabs.")
    (root / "AGENTS.md").symlink_to("CLAUDE.md")
    assert added(root) == "Instructions from AGENTS.md in the workspace's folder:\nUse tabs."


def test_link_out_of_the_workspace_is_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the key")
    (root / "AGENTS.md").symlink_to(tmp_path / "secret")
    (root / "CLAUDE.md").symlink_to("/etc/passwd")
    assert added(root) == ""


def test_files_that_are_not_text_are_omitted(root: Path) -> None:
    os.mkfifo(root / "AGENTS.md")
    (root / "CLAUDE.md").write_bytes(b"\x89PNG\r\n\0\0")
    assert added(root) == ""
    (root / "AGENTS.md").unlink()
    (root / "AGENTS.md").mkdir()
    assert added(root) == ""
    (root / "CLAUDE.md").write_bytes(b"caf\xe9 \xed\xa0\x80")
    assert "caf\ufffd" in added(root)


def test_device_is_never_opened(root: Path) -> None:
    (root / "AGENTS.md").symlink_to("/dev/zero")
    assert added(root) == ""


def test_large_file_is_cut_with_a_notice(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "max_instruction_bytes", 10)
    with (root / "AGENTS.md").open("wb") as file:
        file.write(b"0123456789 and more")
        file.truncate(5_000_000_000)
    assert added(root).endswith(
        ":\n0123456789\n[AGENTS.md is cut here: the first 10 of 5000000000 bytes are shown.]"
    )


def test_change_of_a_file_changes_the_prompt(root: Path) -> None:
    path = root / "AGENTS.md"
    path.write_text("one")
    assert added(root).endswith("\none")
    path.write_text("two")
    assert added(root).endswith("\ntwo")


def test_instructions_of_the_session_are_added_to_the_prompt(root: Path) -> None:
    text = prompt(root, instructions="Be kind.", own_instructions="Be brief.\n")
    assert text.endswith(
        "Instructions of the workspace:\nBe kind.\n\nInstructions of this session:\nBe brief."
    )
