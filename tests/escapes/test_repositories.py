"""What a command leaves behind must not run with the rights of whoever uses git afterwards.

Each attempt is made by the real tools in the sandbox. Then the person's own git is used in the
folder, outside of it. A program that the attempt has named would leave a file beside the
workspace, which the sandbox itself cannot write.
"""

import os
import shutil
import subprocess
from pathlib import Path
from unittest.mock import patch

import pytest
from asgiref.sync import async_to_sync

from conversations.changes.trees import settle_all, watched
from conversations.models import ToolCall
from conversations.tools.tool import ToolResult
from tests.changes.conftest import Calls, crossing
from tests.tools.commanding import Commands, commands

__all__ = ["commands"]

NAMES = {
    f"GIT_{who}_{what}": "a@b.invalid"
    for who in ("AUTHOR", "COMMITTER")
    for what in ("NAME", "EMAIL")
}
IDENTITY = "".join(f"export {name}={value}; " for name, value in NAMES.items())
CLEAN = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_EDITOR": "true",
    **NAMES,
}
USES = (
    ["status"],
    ["commit", "-aq", "--allow-empty", "-m", "by the person"],
    ["fetch", "--all"],
    ["rebase", "--continue"],
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two repositories, one within the other, with a hook of the person's own."""
    root = tmp_path_factory.mktemp("template") / "root"
    for folder in (root, root / "inner"):
        folder.mkdir()
        git(folder, "init", "-q", "-b", "main")
        (folder / "a.txt").write_text("a\n")
        git(folder, "add", "a.txt")
        git(folder, "commit", "-q", "-m", "first")
        git(folder, "branch", "other")
    hook = root / ".git/hooks/post-commit"
    hook.write_text('#!/bin/sh\necho x >> "$(git rev-parse --git-dir)/own-hook-ran"\n')
    hook.chmod(0o755)
    return root


@pytest.fixture
def root(commands: Commands, template: Path) -> Path:
    shutil.copytree(template, commands.root, dirs_exist_ok=True)
    git(commands.root, "worktree", "add", "-q", "tree", "other")
    return commands.root


@pytest.fixture
def marker(commands: Commands) -> Path:
    return commands.root.parent / "ran-outside"


def git(folder: Path, *words: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", *words], cwd=folder, env=CLEAN, capture_output=True, check=False)


def use_git_everywhere(root: Path) -> None:
    """As somebody may who opens any folder of the workspace that git has to do with."""
    for path, names, files in os.walk(root):
        if {".git", "HEAD"} & {*names, *files}:
            for words in USES:
                git(Path(path), *words)


WORDS = {
    "CONFIG": "[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = ROOT/evil\\n",
    "BARE": "mkdir -p NAME/objects NAME/refs; echo 'ref: refs/heads/main' > NAME/HEAD",
    "EVIL": "printf '#!/bin/sh\\ntouch MARKER\\n' > evil; chmod +x evil",
    "NAME": "bare.d",
}
"""What words in the attempts stand for, beside ROOT and MARKER."""

ATTEMPTS = {
    "config": "git config core.fsmonitor ROOT/evil",
    "config_appended": "printf 'CONFIG' >> .git/config",
    "config_replaced": (
        "rm -f .git/config; printf 'CONFIG' > c; mv -f c .git/config; ln -sf ../c .git/config"
    ),
    "config_hard_link": "ln .git/config l; printf 'CONFIG' >> l",
    "config_included": "printf 'CONFIG' > more; git config include.path ../more",
    "config_of_worktree": (
        "printf 'CONFIG' > .git/config.worktree; git config extensions.worktreeConfig true"
    ),
    "config_of_the_tree": (
        "printf 'CONFIG' > .git/worktrees/tree/config; "
        "cd tree && git config core.fsmonitor ROOT/evil"
    ),
    "hook": "cp evil .git/hooks/pre-commit; cp evil .git/hooks/post-commit",
    "hook_linked": (
        "ln -s ROOT/evil .git/hooks/pre-commit; ln -s ROOT/evil .git/worktrees/tree/hooks"
    ),
    "hook_of_the_inner_one": "cp evil inner/.git/hooks/pre-commit",
    "hooks_moved": "mv .git/hooks .git/h; mkdir .git/hooks; cp evil .git/hooks/pre-commit",
    "hooks_path": "git config core.hooksPath ROOT; cp evil pre-commit",
    "git_moved": (
        "mv .git .git2; git init -q .; cp evil .git/hooks/pre-commit; "
        "git config core.fsmonitor ROOT/evil"
    ),
    "git_removed": "rm -rf .git; mkdir .git; git init -q .; git config core.fsmonitor ROOT/evil",
    "folder_moved": (
        "mv inner outer; mkdir inner; cd inner; git init -q; cp ../evil .git/hooks/pre-commit; "
        "git config core.fsmonitor ROOT/evil"
    ),
    "new_repository": (
        "git init -q sub/deep; cd sub/deep; git config core.fsmonitor ROOT/evil; "
        "cp ROOT/evil .git/hooks/pre-commit"
    ),
    "new_without_permissions": (
        "git init -q sub/deep; git -C sub/deep config core.fsmonitor ROOT/evil; chmod 111 sub"
    ),
    "copied_repository": (
        "cp -r inner copy; cd copy; git config core.fsmonitor ROOT/evil; "
        "cp ROOT/evil .git/hooks/pre-commit"
    ),
    "git_file": (
        "BARE; printf 'CONFIG' > NAME/config; mkdir sub; echo 'gitdir: ../NAME' > sub/.git"
    ),
    "git_link": "BARE; printf 'CONFIG' > NAME/config; mkdir sub; ln -s ../NAME sub/.git",
    "git_file_replaced": (
        "BARE; printf 'CONFIG' > NAME/config; rm tree/.git; "
        "echo 'gitdir: ../NAME' > tree/.git; mv tree t; mkdir tree; "
        "echo 'gitdir: ../NAME' > tree/.git"
    ),
    "bare": "BARE; printf 'CONFIG\\tbare = false\\n\\tworktree = .\\n' > NAME/config",
    "bare_in_objects": (
        "cd .git/objects; BARE; printf 'CONFIG' > NAME/config; mkdir ROOT/sub; "
        "echo 'gitdir: ROOT/.git/objects/NAME' > ROOT/sub/.git"
    ),
    "commondir": (
        "mkdir -p elsewhere; cp -r .git/objects .git/refs elsewhere; "
        "printf 'CONFIG' > elsewhere/config; echo ../elsewhere > .git/commondir"
    ),
    "commondir_of_a_new_one": (
        "BARE; printf 'CONFIG' > NAME/config; mkdir -p sub/.git; "
        "echo ROOT/NAME > sub/.git/commondir; echo 'ref: refs/heads/main' > sub/.git/HEAD"
    ),
    "commondir_of_the_tree": (
        "BARE; printf 'CONFIG' > NAME/config; echo ROOT/NAME > .git/worktrees/tree/commondir"
    ),
    "filter": (
        "printf '[filter \"f\"]\\n\\tclean = ROOT/evil\\n' >> .git/config; "
        "echo '* filter=f' > .git/info/attributes; echo b > a.txt"
    ),
    "filter_of_a_new_one": (
        "git init -q n; cd n; git config filter.f.clean ROOT/evil; "
        "echo '* filter=f' > .gitattributes; echo b > b.txt; git add .; echo c >> b.txt"
    ),
    "remote": (
        "git remote add x ext::ROOT/evil; git config remote.x.uploadpack ROOT/evil; "
        "mkdir -p .git/remotes; printf 'URL: ext::ROOT/evil\\n' > .git/remotes/y"
    ),
    "remote_of_a_new_one": (
        "git init -q n; cd n; git config remote.x.url ROOT/inner; "
        "git config remote.x.uploadpack ROOT/evil"
    ),
    "rebase": (
        "git checkout -q -b r; mkdir -p .git/rebase-merge; cd .git/rebase-merge; "
        "git rev-parse HEAD | tee orig-head > onto; echo refs/heads/r > head-name; "
        "printf 'x ROOT/evil\\nexec ROOT/evil\\n' > git-rebase-todo; touch interactive; "
        "echo 0 > msgnum; echo 2 > end"
    ),
    "escaped_config": (
        "git init -q n; touch n/a; git -C n add a; "
        "printf '[CORE]FSMonitor=\"ROOT/ev\"\\\\\nil\n' >> n/.git/config"
    ),
    "by_git_command": (
        "git config alias.st '!ROOT/evil'; git config --global core.fsmonitor ROOT/evil"
    ),
}


def fill(root: Path, marker: Path, command: str) -> str:
    command = f"EVIL; {command}"
    for word, text in (*WORDS.items(), ("ROOT", str(root)), ("MARKER", str(marker))):
        command = command.replace(word, text)
    return command


def attempt(commands: Commands, marker: Path, command: str) -> ToolResult:
    return commands.shell(fill(commands.root, marker, command))


@pytest.mark.parametrize("command", ATTEMPTS.values(), ids=ATTEMPTS)
def test_nothing_that_a_command_leaves_behind_runs(
    commands: Commands, root: Path, marker: Path, command: str
) -> None:
    own = (root / ".git/config", root / ".git/hooks/post-commit")
    contents = [path.read_bytes() for path in own]
    attempt(commands, marker, command)
    use_git_everywhere(root)
    assert not marker.exists()
    assert [path.read_bytes() for path in own] == contents


def test_the_uses_would_have_run_what_is_not_disarmed(root: Path, marker: Path) -> None:
    """The other tests would notice: the same things written by no sandboxed command."""
    for number, command in enumerate(("config", "hook", "new_repository", "rebase", "git_file")):
        subprocess.run(
            ["bash", "-c", fill(root, marker, ATTEMPTS[command])],
            cwd=root,
            env=CLEAN,
            check=False,
            capture_output=True,
        )
        use_git_everywhere(root)
        assert marker.exists(), (number, command)
        marker.unlink()
        git(root, "config", "--unset", "core.fsmonitor")
        (root / ".git/hooks/pre-commit").unlink(missing_ok=True)


ORDINARY = {
    "commit": (
        "echo b > b.txt && git add -A && git commit -qm second && git log --oneline | wc -l"
    ),
    "branch": (
        "git checkout -q -b new && git branch -q more && git checkout -q main && git branch -D new"
    ),
    "remote_branch": "git checkout -q far && git status -sb",
    "stash": (
        "echo c >> a.txt && git stash -q && git stash pop && git diff --stat && git reset -q --hard"
    ),
    "rebase": (
        "git checkout -q -b r other && git commit -q --allow-empty -m x && git rebase -q main"
    ),
    "merge": "git merge -q other && git tag v1 && git gc -q && git reflog",
    "worktree": "cd tree && git commit -q --allow-empty -m x && git log --oneline",
    "inner": "cd inner && git commit -q --allow-empty -m x && mv ../inner/a.txt b.txt",
    "init": (
        "mkdir n && cd n && git init -q -b main && git config user.name me && "
        "git remote add o ../inner && touch a && git add a && git commit -qm first && "
        "git fetch -q o && git branch -m trunk"
    ),
    "clone": "git clone -q inner c && cd c && git checkout -q -b t origin/other",
    "new_worktree": (
        "git worktree add -q w && cd w && git commit -q --allow-empty -m x && git status"
    ),
    "moved": "mv inner outer && cd outer && git commit -q --allow-empty -m x",
    "copied": "cp -r . /tmp/c && cp -r inner copy && cd copy && git commit -q --allow-empty -m x",
}


@pytest.mark.parametrize("command", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_work_with_git_goes_on(commands: Commands, root: Path, command: str) -> None:
    git(root, "update-ref", "refs/remotes/origin/far", "main")
    git(root, "config", "remote.origin.url", "./inner")
    git(root, "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
    result = commands.shell(f"{IDENTITY}export GIT_EDITOR=true; {command}")
    assert result.ok, result.output
    assert "disarmed" not in result.output
    for folder in ("n", "c", "w", "outer", "copy"):
        if (root / folder).exists():
            assert git(root / folder, "status").returncode == 0
            assert git(root / folder, "log", "-1").returncode == 0


def test_what_was_disarmed_is_told_and_still_there(commands: Commands, root: Path) -> None:
    result = commands.shell(
        "git init -q n; cd n; git config core.fsmonitor ./evil; git config user.name me;"
        " echo hook > .git/hooks/pre-commit"
    )
    assert "[Git would run or obey n/.git/config, n/.git/hooks/pre-commit outside" in result.output
    assert (root / "n/.git/hooks/pre-commit.disabled").read_text() == "hook\n"
    config = (root / "n/.git/config").read_text()
    assert "# disabled: \tfsmonitor = ./evil\n" in config
    assert "\n\tname = me\n" in config


def test_configuration_can_be_written_where_a_call_may(commands: Commands, root: Path) -> None:
    result = commands.git("config", "user.name", "Robin")
    assert result.ok
    assert "disarmed" not in result.output
    assert git(root, "config", "user.name").stdout == b"Robin\n"
    assert git(root, "config", "core.bare").stdout == b"false\n"


def test_a_hook_folder_and_an_included_file_in_the_tree_are_read_only(
    commands: Commands, root: Path, marker: Path
) -> None:
    git(root, "config", "core.hooksPath", ".githooks")
    git(root, "config", "include.path", "../.gitconfig")
    (root / ".githooks").mkdir()
    (root / ".gitconfig").write_text("[user]\n\tname = me\n")
    attempt(commands, marker, "cp evil .githooks/pre-commit; printf 'CONFIG' >> .gitconfig")
    (root / ".githooks").rmdir()
    attempt(commands, marker, "mkdir .githooks; cp evil .githooks/pre-commit")
    use_git_everywhere(root)
    assert not marker.exists()
    assert (root / ".githooks/pre-commit.disabled").exists()


def test_what_a_command_left_when_the_server_died_is_disarmed_by_the_next_one(
    commands: Commands, root: Path, marker: Path
) -> None:
    calls = Calls(commands.session)
    call = calls.make_call(state="running")

    async def die() -> None:
        async with watched(root, author=calls.author(call), write=crossing):
            for command in ("config", "hook", "new_repository"):
                text = fill(root, marker, ATTEMPTS[command])
                subprocess.run(["bash", "-c", text], cwd=root, check=True)  # noqa: ASYNC221
            raise _Died

    with pytest.raises(_Died), patch("conversations.changes.trees._conclude", _nothing):
        async_to_sync(die)()
    ToolCall.objects.filter(pk=call.pk).update(state="interrupted")
    assert async_to_sync(settle_all)(read=crossing, write=crossing) == 1
    use_git_everywhere(root)
    assert not marker.exists()


class _Died(Exception):
    pass


async def _nothing(*_: object) -> None:
    """The process that would have looked is gone."""


FILES = ("x/HEAD", "x/objects/a", "x/refs/a", "x/config")


@pytest.mark.parametrize("last", ["x/HEAD", "x/objects/a", "x/refs/a", "x/commondir"])
def test_file_tools_make_no_repository(commands: Commands, last: str) -> None:
    for path in FILES:
        if path != last:
            commands.run("write_file", path=path, content="ref: refs/heads/main\n")
    result = commands.run("write_file", path=last, content="ref: refs/heads/main\n")
    assert not result.ok
    assert "git's own data" in result.output
    commands.run("write_file", path="y", content="ref: refs/heads/main\n")
    assert not commands.run("move_file", source="y", destination=last).ok
