"""Attempts to leave a program behind that runs with the rights of a person who uses git.

Each attempt is made with the real tools in the sandbox. Then the person's own git is used in the
folder, outside of the sandbox. If git runs the attempt's program, it leaves a file beside the
workspace, where a command in the sandbox cannot write.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from threading import Event, Thread
from unittest.mock import patch

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings

from conversations.agent.sandbox.repositories import FolderReader, find_repositories
from conversations.agent.tools.tool import ToolResult
from conversations.agent.undo.disarming import disarm
from conversations.agent.undo.listing import dump_listing, load_listing
from conversations.agent.undo.trees import _list_before, complete_all, watched
from conversations.models import ToolCall
from tests.changes.conftest import Calls, crossing
from tests.tools.commanding import Commands, commands, set_loom

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
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "maintenance.auto",
    "GIT_CONFIG_VALUE_0": "false",
    **NAMES,
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nested repositories with the person's own hooks, and a second working tree."""
    root = tmp_path_factory.mktemp("template") / "root"
    for folder in (root, root / "inner"):
        folder.mkdir()
        git(folder, "init", "-q", "-b", "main", "--template=")
        (folder / ".git/hooks").mkdir()
        (folder / ".git/info").mkdir()
        (folder / "a.txt").write_text("a\n")
        git(folder, "add", "a.txt")
        git(folder, "commit", "-q", "-m", "first")
        git(folder, "branch", "other")
        hook = folder / ".git/hooks/post-commit"
        hook.write_text("#!/bin/sh\n:\n")
        hook.chmod(0o755)
    git(root, "worktree", "add", "-q", "tree", "other")
    return root


def copy(template: Path, to: Path) -> Path:
    shutil.copytree(template, to, dirs_exist_ok=True)
    for name in ("tree/.git", ".git/worktrees/tree/gitdir"):
        place = to / name
        place.write_text(place.read_text().replace(str(template), str(to)))
    return to


@pytest.fixture
def root(commands: Commands, template: Path) -> Path:
    return copy(template, commands.root)


@pytest.fixture
def marker(commands: Commands) -> Path:
    return commands.root.parent / "ran-outside"


def git(folder: Path, *words: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", *words], cwd=folder, env=CLEAN, capture_output=True, check=False)


def use_git_everywhere(root: Path) -> None:
    """Use git in every folder of the workspace that belongs to git, as a person might.

    Commands that continue an operation run only where the operation was begun.
    """
    for path, names, files in os.walk(root):
        found, folder = {*names, *files}, Path(path)
        if ".git" not in found and ("HEAD" not in found or folder.name in (".git", "logs")):
            continue
        git(folder, "commit", "-aq", "--allow-empty", "-m", "by the person")
        own = folder / ".git" if (folder / ".git").is_dir() else folder
        if (own / "config").is_file() and "[remote" in (own / "config").read_text():
            git(folder, "fetch", "--all")
        if (own / "rebase-merge").exists():
            git(folder, "rebase", "--continue")
        if (own / "sequencer").exists():
            git(folder, "cherry-pick", "--continue")


WORDS = {
    "CONFIG": "[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = ROOT/evil\\n",
    "BARE": "mkdir -p NAME/objects NAME/refs; echo 'ref: refs/heads/main' > NAME/HEAD",
    "EVIL": "printf '#!/bin/sh\\ntouch MARKER\\n' > evil; chmod +x evil",
    "NAME": "bare.d",
}
"""Placeholders in the attempts and their values. ROOT and MARKER are replaced as well."""

ATTEMPTS = {
    "config": "git config core.fsmonitor ROOT/evil",
    "config_appended": "printf 'CONFIG' >> .git/config",
    "config_replaced": (
        "rm -f .git/config; printf 'CONFIG' > c; cp -f c .git/config; ln -sf ../c .git/config"
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
        "git config remote.x.url ROOT/inner; git config remote.x.uploadpack ROOT/evil; "
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
    "strategy_of_a_rebase": (
        "mkdir -p .git/rebase-merge git-merge-..; cd .git/rebase-merge; "
        "git rev-parse HEAD | tee orig-head > onto; echo refs/heads/main > head-name; "
        "git commit-tree -p HEAD -m x HEAD: | sed 's/^/pick /' > git-rebase-todo; "
        "git commit-tree -m y HEAD: | sed 's/^/pick /' >> git-rebase-todo; "
        "touch interactive; echo ../../evil > strategy; echo 0 > msgnum; echo 2 > end"
    ),
    "strategy_of_a_pick": (
        "mkdir -p .git/sequencer git-merge-..; cd .git/sequencer; git rev-parse HEAD > head; "
        "git rev-parse HEAD > abort-safety; "
        "git commit-tree -m y HEAD: | sed 's/^/pick /' > todo; cat todo >> todo2; "
        "cat todo2 >> todo; printf '[options]\\n\\tstrategy = ../../evil\\n' > opts"
    ),
    "strategy_behind_a_link": (
        "mkdir seq git-merge-..; ln -s ../seq .git/sequencer; cd seq; git rev-parse HEAD > head; "
        "git rev-parse HEAD > abort-safety; "
        "git commit-tree -m y HEAD: | sed 's/^/pick /' > todo; cat todo >> todo2; "
        "cat todo2 >> todo; printf '[options]\\n\\tstrategy = ../../evil\\n' > opts"
    ),
    "escaped_config": (
        "git init -q n; touch n/a; git -C n add a; "
        "printf '[CORE]FSMonitor=\"ROOT/ev\"\\\\\nil\n' >> n/.git/config"
    ),
}


def fill(root: Path, marker: Path, command: str) -> str:
    command = f"EVIL; {command}"
    for word, text in (*WORDS.items(), ("ROOT", str(root)), ("MARKER", str(marker))):
        command = command.replace(word, text)
    return command


def attempt(commands: Commands, marker: Path, command: str) -> ToolResult:
    return commands.shell(fill(commands.root, marker, command))


def marker_of(root: Path, name: str) -> Path:
    return root.parent / f"ran-outside-{name}"


def own_parts(root: Path) -> list[bytes]:
    return [(root / path).read_bytes() for path in (".git/config", ".git/hooks/post-commit")]


def test_git_runs_no_program_that_a_command_left_behind(commands: Commands, template: Path) -> None:
    """Each attempt is made in a folder of its own, all in one sandbox."""
    lines = []
    for name, command in ATTEMPTS.items():
        root = copy(template, commands.root / name)
        lines.append(f"( cd {name}; {fill(root, marker_of(commands.root, name), command)} )")
    own = own_parts(template)
    commands.shell("\n".join(lines))
    changed = [name for name in ATTEMPTS if own_parts(commands.root / name) != own]
    use_git_everywhere(commands.root)
    assert not changed
    assert not [name for name in ATTEMPTS if marker_of(commands.root, name).exists()]


@pytest.mark.parametrize("name", ["config_replaced", "hooks_moved", "git_moved"])
def test_git_runs_no_program_left_in_a_workspace_that_is_a_repository(
    commands: Commands, root: Path, marker: Path, name: str
) -> None:
    own = own_parts(root)
    attempt(commands, marker, ATTEMPTS[name])
    use_git_everywhere(root)
    assert not marker.exists()
    assert own_parts(root) == own


def test_the_attempts_run_programs_without_the_sandbox(template: Path, tmp_path: Path) -> None:
    """Without a sandbox, the same attempts succeed and the other tests would fail."""
    root = tmp_path / "root"
    for name, command in ATTEMPTS.items():
        folder = copy(template, root / name)
        subprocess.run(
            ["bash", "-c", fill(folder, marker_of(root, name), command)],
            cwd=folder,
            env=CLEAN,
            check=False,
            capture_output=True,
        )
    use_git_everywhere(root)
    assert not [name for name in ATTEMPTS if not marker_of(root, name).exists()]


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


def test_ordinary_work_with_git_succeeds(commands: Commands, template: Path) -> None:
    lines = [f"{IDENTITY} export GIT_EDITOR=true"]
    for name, command in ORDINARY.items():
        root = copy(template, commands.root / name)
        git(root, "update-ref", "refs/remotes/origin/far", "main")
        with (root / ".git/config").open("a") as file:
            file.write('[remote "origin"]\n\turl = ./inner\n')
            file.write("\tfetch = +refs/heads/*:refs/remotes/origin/*\n")
        lines.append(f"( cd {name} && {command} ) || echo FAILED: {name}")
    result = commands.shell("\n".join(lines))
    assert "FAILED" not in result.output
    assert "disarmed" not in result.output
    for name in ORDINARY:
        for folder in ("n", "c", "w", "outer", "copy"):
            if (place := commands.root / name / folder).exists():
                assert git(place, "status").returncode == 0
                assert git(place, "log", "-1").returncode == 0


def test_disarmed_files_are_reported_and_kept(commands: Commands, root: Path) -> None:
    result = commands.shell(
        "git init -q n; cd n; git config core.fsmonitor ./evil; git config user.name me;"
        " echo hook > .git/hooks/pre-commit"
    )
    assert "[Git would run or obey n/.git/config, n/.git/hooks/pre-commit outside" in result.output
    assert (root / "n/.git/hooks/pre-commit.disabled").read_text() == "hook\n"
    config = (root / "n/.git/config").read_text()
    assert "# disabled: \tfsmonitor = ./evil\n" in config
    assert "\n\tname = me\n" in config


def test_a_call_that_may_change_the_configuration_can_write_it(
    commands: Commands, root: Path
) -> None:
    result = commands.git("config", "user.name", "Robin")
    assert result.ok
    assert "disarmed" not in result.output
    assert git(root, "config", "user.name").stdout == b"Robin\n"
    assert git(root, "config", "core.bare").stdout == b"false\n"


def test_a_filter_gains_nothing_while_the_configuration_is_writable(
    commands: Commands, root: Path, marker: Path
) -> None:
    subprocess.run(["bash", "-c", fill(root, marker, "true")], cwd=root, check=True)
    (root / ".gitattributes").write_text("* filter=f\n")
    git(root, "checkout", "-q", "-b", "more")
    git(root, "config", "filter.f.smudge", f"cat; git config core.fsmonitor {root}/evil")
    (root / "b.txt").write_text("b\n")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "b")
    (root / "b.txt").unlink()
    result = commands.git("checkout", "-B", "new", "-f")
    assert "disarmed" in result.output
    use_git_everywhere(root)
    assert not marker.exists()
    assert git(root, "config", "filter.f.smudge").stdout.startswith(b"cat; ")


def test_beyond_the_scan_limit_known_repositories_are_still_checked(
    commands: Commands, root: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conversations.agent.sandbox.repositories.NAMES_PER_FILE", 0.003)
    command = f"cd inner; touch $(seq 200); {ATTEMPTS['strategy_of_a_pick']}"
    result = attempt(commands, marker, command)
    assert "too many files to scan completely" in result.output
    assert "inner/.git/sequencer/opts" in result.output
    use_git_everywhere(root)
    assert not marker.exists()


def test_a_hook_folder_and_an_included_file_in_the_tree_are_protected(
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


def test_the_next_server_disarms_files_after_a_crash(
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

    with pytest.raises(_Died), patch("conversations.agent.undo.trees._conclude", _nothing):
        async_to_sync(die)()
    ToolCall.objects.filter(pk=call.pk).update(state="interrupted")
    assert async_to_sync(complete_all)(read=crossing, write=crossing) == 1
    use_git_everywhere(root)
    assert not marker.exists()


class _Died(Exception):
    pass


async def _nothing(*_: object) -> None:
    """Do nothing, because the process that would have checked the folder has died."""


WAITS = "touch ready; while [ ! -e go ]; do sleep 0.02; done; "


def run_beside(commands: Commands, marker: Path, command: str, work: Callable[[], object]) -> str:
    """Run a command while another thread does the work in the folder. Return the output."""
    root = commands.root

    def be_there() -> None:
        while not (root / "ready").exists():
            time.sleep(0.01)
        try:
            work()
        finally:
            (root / "go").touch()

    person = Thread(target=be_there)
    person.start()
    try:
        return attempt(commands, marker, WAITS + command).output
    finally:
        person.join()


def test_changes_by_a_person_during_a_command_are_kept(
    commands: Commands, root: Path, marker: Path
) -> None:
    config, hook = root / ".git/config", root / ".git/hooks/pre-commit"

    def work() -> None:
        with config.open("a") as file:
            file.write("[core]\n\teditor = vim\n")
        hook.write_text("#!/bin/sh\n")
        (root / ".git/hooks/post-commit").write_text("#!/bin/sh\ntrue\n")

    output = run_beside(commands, marker, "cp evil .git/hooks/update; git status", work)
    assert "disarmed" not in output
    assert git(root, "config", "core.editor").stdout == b"vim\n"
    assert hook.exists()
    assert (root / ".git/hooks/post-commit").read_text() == "#!/bin/sh\ntrue\n"


BESIDE: dict[str, tuple[Callable[[Path], object], str]] = {
    "linked": (
        lambda root: os.link(root / ".git/hooks/post-commit", root / "l"),
        "cat evil > l",
    ),
    "config_replaced": (
        lambda root: git(root, "config", "user.name", "me"),
        "printf 'CONFIG' >> .git/config; printf 'CONFIG' > c; mv c .git/config",
    ),
    "hooks_replaced": (
        lambda root: shutil.move(root / ".git/hooks", root / "old"),
        "mkdir .git/hooks; cp evil .git/hooks/pre-commit",
    ),
    "made": (
        lambda root: git(root, "init", "n"),
        "cp evil n/.git/hooks/pre-commit; printf 'CONFIG' >> n/.git/config",
    ),
}


def test_a_command_gains_nothing_from_a_persons_simultaneous_changes(
    commands: Commands, root: Path, marker: Path
) -> None:
    """A mount ends as soon as a process outside of the sandbox replaces the mounted file."""
    os.link(root / "inner/.git/hooks/post-commit", root / "linked-before")

    def work() -> None:
        for change, _ in BESIDE.values():
            change(root)

    command = "; ".join(command for _, command in BESIDE.values())
    output = run_beside(commands, marker, f"{command}; cat evil > linked-before", work)
    assert "disarmed" in output
    use_git_everywhere(root)
    assert not marker.exists()


BY_LINK = {
    "written": (
        "cp evil scripts/pre-commit; cat evil > scripts/pre-commit; cp evil own/pre-commit;"
        " printf 'CONFIG' >> own/config"
    ),
    "moved": (
        "mv scripts s; mkdir scripts; cp evil scripts/pre-commit;"
        " mv own o; mkdir own; cp evil own/pre-commit; printf 'CONFIG' > own/config"
    ),
}


@pytest.mark.parametrize("name", BY_LINK)
def test_hooks_and_configuration_linked_into_the_tree_are_protected(
    commands: Commands, root: Path, marker: Path, name: str
) -> None:
    for folder in (root / "scripts", root / "own"):
        folder.mkdir()
        (folder / "pre-commit").write_text("#!/bin/sh\n")
        (folder / "pre-commit").chmod(0o755)
    (root / ".git/hooks/pre-commit").symlink_to("../../scripts/pre-commit")
    shutil.rmtree(root / "inner/.git/hooks")
    (root / "inner/.git/hooks").symlink_to("../../own")
    (root / "inner/.git/config").rename(root / "own/config")
    (root / "inner/.git/config").symlink_to("../../own/config")
    attempt(commands, marker, BY_LINK[name])
    use_git_everywhere(root)
    assert not marker.exists()
    assert (root / ".git/hooks/pre-commit").is_symlink()


def test_configuration_that_is_too_large_for_the_undo_is_kept(
    commands: Commands, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_loom(monkeypatch, snapshot_max_file_bytes=1, snapshot_max_bytes=1)
    git(root, "config", "alias.st", "!own")
    assert "disarmed" not in commands.git("remote", "add", "far", "./inner").output
    assert git(root, "config", "alias.st").stdout == b"!own\n"
    assert git(root, "config", "remote.far.url").stdout == b"./inner\n"
    listing, _ = _list_before(root)
    assert load_listing(dump_listing(listing, owner="x")) == listing


def test_the_steps_of_a_persons_own_rebase_are_kept(commands: Commands, root: Path) -> None:
    git(root, "rebase", "-q", "-f", "--root", "-x", "false", "-x", "false", "-x", "own")
    result = commands.shell(f"{IDENTITY} git rebase --continue")
    assert "disarmed" not in result.output
    assert "\nexec own\n" in "\n" + (root / ".git/rebase-merge/git-rebase-todo").read_text()


NOBODY = 65534


@contextmanager
def as_somebody() -> Iterator[None]:
    """Run the block as a user other than root, as most servers do."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A folder of a server that does not run as root."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else for a while")
    # The server must be able to look up the database, because it leaves the database out.
    Path(str(settings.DATABASES["default"]["NAME"])).parent.chmod(0o711)
    folder = Path(mkdtemp())
    (folder / "root").mkdir()
    for path in (folder, folder / "root"):
        os.chown(path, NOBODY, NOBODY)
    yield folder / "root"
    subprocess.run(["rm", "-rf", folder], check=True)


def prepare(root: Path, command: str) -> None:
    words = ["bash", "-c", fill(root, root.parent / "marker", command)]
    subprocess.run(words, cwd=root, env=CLEAN, user=NOBODY, check=True, capture_output=True)


@pytest.mark.parametrize("mode", ["300", "100", "000"])
def test_a_repository_that_its_owner_cannot_read_is_disarmed(theirs: Path, mode: str) -> None:
    prepare(theirs, f"git init -q w; git -C w config core.fsmonitor ROOT/evil; chmod {mode} w/.git")
    with as_somebody():
        found = disarm(theirs, {})
    assert not found.failed
    subprocess.run(["git", "status"], cwd=theirs / "w", env=CLEAN, user=NOBODY, check=False)
    assert not (theirs.parent / "marker").exists()


def test_a_hook_that_could_not_be_disarmed_is_disarmed_later(theirs: Path) -> None:
    prepare(theirs, "git init -q w; cp evil w/.git/hooks/pre-commit")
    hook = theirs / "w/.git/hooks/pre-commit"
    os.chown(hook.parent, 0, 0)
    with as_somebody():
        assert disarm(theirs, {}).failed == ["w/.git/hooks/pre-commit"]
        before = find_repositories(theirs).parts
    os.chown(hook.parent, NOBODY, NOBODY)
    with as_somebody():
        assert disarm(theirs, before, was_held=lambda _: True).paths == ["w/.git/hooks/pre-commit"]
        again = find_repositories(theirs).parts
        assert not disarm(theirs, again).paths
    assert not hook.exists()


def test_the_scan_does_not_change_a_folder_behind_a_swapped_in_link(
    theirs: Path,
) -> None:
    """The scan opens a folder by changing its mode, and restores the mode of this folder only."""
    outside = theirs.parent / "outside"
    prepare(theirs, f"mkdir -p {outside}/b a/b; chmod 750 {outside}/b; ln -s {outside} link")
    prepare(theirs, "mkdir m; cd m; mkdir -p {1..30}/{1..30}")
    (theirs / "a/b").chmod(0o277)
    is_over = Event()

    def swap() -> None:
        while (theirs / "a/b").stat().st_mode & 0o777 == 0o277 and not is_over.is_set():
            pass
        if not is_over.is_set():
            (theirs / "a").rename(theirs / "was")
            (theirs / "link").rename(theirs / "a")

    other = Thread(target=swap)
    other.start()
    with as_somebody():
        find_repositories(theirs)
    is_over.set()
    other.join()
    assert (outside / "b").stat().st_mode & 0o777 == 0o750


def test_deep_folders_pipes_and_links_do_not_stop_the_scan(theirs: Path) -> None:
    prepare(theirs, "git init -q z/w; mkfifo z/w/.git/hooks/x z/w/.git/info/attributes")
    folder = os.open(theirs, os.O_PATH)
    for _ in range(3000):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_PATH, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    (theirs / "z/l").symlink_to("w")
    before = len(os.listdir("/proc/self/fd"))
    found = find_repositories(theirs)
    assert found.folders == ["z/w/.git"]
    assert found.parts["z/w/.git/hooks/x"].state == "o"
    assert len(os.listdir("/proc/self/fd")) == before
    with FolderReader(str(theirs)) as reach:
        assert reach.resolve("z", f"{theirs}/z/../z/./w/.git/") == "z/w/.git"
        for name in ("l/.git", "l/../w/.git", "../../root", "/", f"{theirs}x"):
            assert reach.resolve("z", name) is None


FILES = ("x/HEAD", "x/objects/a", "x/refs/a", "x/config")


@pytest.mark.parametrize("last", ["x/HEAD", "x/objects/a", "x/refs/a", "x/commondir"])
def test_file_tools_cannot_create_a_repository(commands: Commands, last: str) -> None:
    for path in FILES:
        if path != last:
            commands.run("write_file", path=path, content="ref: refs/heads/main\n")
    result = commands.run("write_file", path=last, content="ref: refs/heads/main\n")
    assert not result.ok
    assert "git’s own data" in result.output
    commands.run("write_file", path="y", content="ref: refs/heads/main\n")
    assert not commands.run("move_file", source="y", destination=last).ok
