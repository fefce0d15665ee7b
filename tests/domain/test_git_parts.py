"""Git folders: harmless lines of a configuration, and recognition of repositories."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.agent.files.executed_files import (
    clean_config,
    clean_steps,
    completes_git_folder,
    is_git_folder,
    names_own_strategy,
)

KEPT = (
    "[core]\n\tbare = false\n\trepositoryformatversion = 0\n",
    '[remote "o"]\n\turl = https://x.invalid/y.git\n\tfetch = +refs/heads/*:refs/remotes/o/*\n',
    '[branch "main"]\n\tremote = origin\n\tmerge = refs/heads/main\n',
    "[USER]\r\n\tName = Robin Ölkuchen\r\n; a comment \\\n[advice]\n\tdetachedHead = false\n",
)


@pytest.mark.parametrize("text", KEPT)
def test_a_harmless_configuration_stays_as_it_is(text: str) -> None:
    assert clean_config(text.encode()) == text.encode()


DISABLED = (
    "[core]\n\tfsmonitor = x\n",
    "[core] fsmonitor = x\n",
    "[core]\n\tbare = false \\\nfsmonitor = x\n",
    '[core]\n\tbare = "false\n\tfsmonitor = x\n',
    "[core]\n\tsshCommand = x\n\thooksPath = x\n\tpager = x\n\teditor = x\n\tgitProxy = x\n",
    "[core]\n\tworktree = /\n",
    "[CORE]\n FSMONITOR=x\n",
    "\ufeff[core]\nfsmonitor = x\n",
    "[core.x]\n[core]\n\taskPass = x\n",
    '[filter "f"]\n\tclean = x\n[diff "d"]\n\tcommand = x\n\ttextconv = x\n[alias]\n\tst = !x\n',
    "[include]\n\tpath = x\n[includeIf \"gitdir:/\"]\n\tpath = x\n",
    '[remote "o"]\n\turl = ext::x\n\tpushurl = -x\n\tuploadpack = x\n\tvcs = x\n\tproxy = x\n',
    '[submodule "s"]\n\tupdate = !x\n[credential]\n\thelper = !x\n[gpg]\n\tprogram = x\n',
    "[uploadpack]\n\tpackObjectsHook = x\n[sequence]\n\teditor = x\n[pager]\n\tlog = x\n",
    '[branch "b"]\n\tremote = ext::x\n[url "ext::x"]\n\tinsteadOf = https://\n',
)  # fmt: skip


@pytest.mark.parametrize("text", DISABLED)
def test_lines_that_name_a_program_or_a_path_become_comments(text: str, tmp_path: Path) -> None:
    clean = clean_config(text.encode())
    for key in ("fsmonitor = x", "= !x", "command = x", "path = x", " = ext::x", "worktree"):
        assert not [x for x in clean.decode().split("\n") if key in x and not x.startswith("#")]
    assert values(clean, tmp_path) <= {"false"}


@given(text=st.text(alphabet='[]coreuser="\\\n\r \t#;fsmonitor.x!', max_size=200))
def test_a_cleaned_configuration_is_stable_and_keeps_its_line_count(text: str) -> None:
    clean = clean_config(text.encode())
    assert clean_config(clean) == clean
    assert text.count("\n") == clean.decode().count("\n")


def test_known_lines_are_kept() -> None:
    known = b'[core]\n\tbare = false\n[filter "lfs"]\n\tclean = git-lfs \\\n\t  clean\n'
    now = known + b"\tsmudge = x\n[core]\n\tpager = x\n[user]\n\tname = me\n"
    clean = clean_config(now, known=known)
    assert clean.startswith(known)
    assert b"\n# disabled: \tsmudge = x\n" in clean
    assert b"\n# disabled: \tpager = x\n" in clean
    assert clean.endswith(b"[user]\n\tname = me\n")


def test_a_known_line_is_not_known_in_another_section() -> None:
    clean = clean_config(b"[core]\n\tclean = x\n", known=b'[filter "f"]\n\tclean = x\n')
    assert clean == b"[core]\n# disabled: \tclean = x\n"


def test_steps_of_a_rebase_that_run_programs_become_comments() -> None:
    steps = b"pick 1 a\n exec x\nx y\nx\tz\nedit 2 exec b\n"
    want = b"pick 1 a\n# disabled:  exec x\n# disabled: x y\n# disabled: x\tz\nedit 2 exec b\n"
    assert clean_steps(steps) == want


def test_known_steps_are_kept() -> None:
    assert clean_steps(b"exec a\nexec b\n", known=b"exec a\n") == b"exec a\n# disabled: exec b\n"


def test_only_merge_strategies_of_git_itself_are_accepted() -> None:
    for text in (b"ort\n", b"", b"[options]\n\tedit = true\n\tstrategy = ours\n"):
        assert names_own_strategy(text)
    for text in (b"../x", b"ort\n../x", b"[options] strategy=x\n", b"[a]\nSTRATEGY = \\\nx\n"):
        assert not names_own_strategy(text)


def test_repositories_are_recognised_as_git_does() -> None:
    assert is_git_folder(["HEAD", "objects", "refs"])
    assert is_git_folder(["HEAD", "commondir"])
    assert not is_git_folder(["objects", "refs", "config"])
    assert completes_git_folder(["HEAD", "refs"], "objects")
    assert completes_git_folder(["HEAD", "refs", "objects"], "hooks")
    assert not completes_git_folder(["HEAD", "refs", "objects"], "readme")
    assert not completes_git_folder(["src"], "config")


def values(config: bytes, folder: Path) -> set[str]:
    """Return the values that git itself reads."""
    file = folder / "config"
    file.write_bytes(config)
    done = subprocess.run(
        ["git", "config", "--file", str(file), "--list", "--no-includes"],
        cwd=folder, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {line.partition("=")[2] for line in done.stdout.splitlines()}
