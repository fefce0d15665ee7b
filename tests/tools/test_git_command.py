"""``git_command``: reading calls, changing calls and programs that a repository configures."""

import subprocess
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from conversations.agent.files.executed_files import NAMES_SELF_RUNNING
from conversations.agent.sandbox import support
from conversations.domain.tool_calls import CallPlan

from .commanding import Commands, commands, root, set_loom

__all__ = ["commands", "root"]


@pytest.fixture
def repository(commands: Commands, root: Path) -> Commands:
    """A repository with one commit and an uncommitted change."""
    (root / "a.txt").write_text("one\n")
    identity = ("-c", "user.name=x", "-c", "user.email=x@y")
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-qm", "first")):
        subprocess.run(["git", *identity, *words], cwd=root, check=True)
    (root / "a.txt").write_text("two\n")
    return commands


def test_status_diff_and_commit_work_in_the_persons_name(repository: Commands, user: User) -> None:
    assert repository.git("status", "--short").output == " M a.txt\n"
    assert "-one\n+two\n" in repository.git("diff").output
    assert repository.git("add", "a.txt").ok
    assert repository.git("commit", "-qm", "second").ok
    log = repository.run("git_command", arguments="git log -1 --format='%an <%ae> %s'").output
    assert log == f"{user.username} <user@loom.invalid> second\n"


def test_special_characters_in_a_name_do_not_change_the_config(
    commands: Commands, user: User
) -> None:
    user.first_name, user.last_name = 'A"\n[core]\npager=x', "\\B"
    user.save()
    commands.git("init", "-q")
    assert commands.git("commit", "-q", "--allow-empty", "-m", "x").ok
    assert commands.git("log", "--format=%an").output == 'A"[core]pager=x \\B\n'


def test_identity_of_the_repository_takes_precedence(repository: Commands) -> None:
    repository.git("config", "user.name", "Rose")
    repository.git("config", "user.email", "rose@example.org")
    repository.git("commit", "-qam", "second")
    assert repository.git("log", "-1", "--format=%an %ae %cn").output == (
        "Rose rose@example.org Rose\n"
    )


def test_only_calls_that_change_something_need_approval(commands: Commands) -> None:
    for arguments, kind in [
        ("status", None),
        ("log --oneline -20 --stat --text", None),
        ("diff HEAD~1 -- output", None),
        ("show HEAD:a.txt", None),
        ("grep -n -o word", None),
        ("ls-files -o", None),
        ("branch", None),
        ("branch -a -vv", None),
        ("branch --list 'a*'", None),
        ("branch --contains HEAD", None),
        ("tag -l v1*", None),
        ("stash list", None),
        ("remote -v", None),
        ("config --get user.name", None),
        ("reflog", None),
        ("branch new", "git:branch"),
        ("branch -D main", "git:branch"),
        ("branch --list -D main", "git:branch"),
        ("tag v1", "git:tag"),
        ("tag -d v1", "git:tag"),
        ("stash", "git:stash"),
        ("stash drop", "git:stash"),
        ("remote add x y", "git:remote"),
        ("config user.name x", "git:config"),
        ("reflog expire --all", "git:reflog"),
        ("commit -m x", "git:commit"),
        ("checkout -b x", "git:checkout"),
        ("reset --hard", "git:reset"),
        ("clean -fdx", "git:clean"),
    ]:
        plan = commands.plan("git_command", arguments=arguments)
        assert isinstance(plan, CallPlan), (arguments, kind)
        assert plan.command.startswith(f"git {arguments.split()[0]}"), (arguments, kind)
        assert plan.effect == ("reads" if kind is None else "changes"), (arguments, kind)
        assert plan.kind_key == (kind or ""), (arguments, kind)


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        ("mv payload .envrc", ""),
        ("checkout evil -- .vscode/tasks.json", ""),
        ("restore --source=evil .husky/pre-commit", ""),
        ("mv payload pre-commit", ".husky"),
    ],
)
def test_call_that_names_a_self_running_file_needs_approval_each_time(
    commands: Commands, root: Path, arguments: str, folder: str
) -> None:
    (root / folder).mkdir(exist_ok=True)
    plan = commands.plan("git_command", arguments=arguments, folder=folder)
    assert isinstance(plan, CallPlan)
    assert plan.summary.endswith(f" in {folder}" if folder else arguments)
    assert (plan.kind_key, plan.kind_label) == ("", "")
    assert NAMES_SELF_RUNNING in plan.note


def test_disallowed_arguments_are_refused_before_approval(commands: Commands) -> None:
    for arguments in [
        None,
        "",
        "git",
        "'open",
        7,
        [1],
        [],
        ["status\0"],
        "-c core.pager=x log",
        "-C / status",
        "--git-dir=/tmp/x status",
        "--exec-path=. status",
        "diff --output=stolen",
        "diff --outp=stolen",
        "log -p --ext-diff",
        "log -p --textconv",
        "grep --open-files-in-pager=./x one",
        "grep -O./x one",
        "rebase -x ./x HEAD",
        "rebase --exec ./x HEAD",
        "some-alias",
        "bisect run ./x",
        "filter-branch",
        "submodule add ext::sh",
        "daemon",
        "fetch",
        "pull origin",
        "push",
        "clone https://example.org/x",
        "ls-remote ext::sh",
        "remote update",
    ]:
        for answer in (
            commands.plan("git_command", arguments=arguments),
            commands.run("git_command", arguments=arguments),
        ):
            assert not isinstance(answer, CallPlan), arguments
            assert not answer.ok, arguments
            assert answer.output.endswith("."), arguments
        assert not (commands.root / "stolen").exists(), arguments


def test_reading_calls_are_offered_in_a_read_only_scope(repository: Commands) -> None:
    repository.allow(policy="read_only")
    assert repository.offers("git_command")
    assert repository.git("status", "--short").output == " M a.txt\n"
    refused = repository.git("add", "a.txt")
    assert (refused.ok, refused.output) == (False, "git add is not allowed here.")


def test_reading_call_has_a_read_only_workspace(repository: Commands, root: Path) -> None:
    """The workspace is read-only for every program that the repository configures."""
    (root / ".gitattributes").write_text("*.txt filter=x diff=x\n")
    with (root / ".git/config").open("a") as file:
        file.write('[filter "x"]\n\tclean = touch made-by-clean; cat\n')
        file.write('[diff "x"]\n\ttextconv = touch made-by-textconv; cat\n')
        file.write("[diff]\n\texternal = touch made-by-external\n")
        file.write("[core]\n\tfsmonitor = touch made-by-monitor\n\tpager = touch made-by-pager\n")
    for arguments in (["status"], ["diff"], ["log", "-p"], ["show"], ["blame", "a.txt"]):
        repository.git(*arguments)
    assert not list(root.glob("made*"))


def test_every_call_needs_approval_without_a_sandbox(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(support.find_support().bwrap).removesuffix("bwrap")
    assert path
    monkeypatch.setenv("PATH", "")
    support.find_support.cache_clear()
    try:
        assert not commands.offers("git_command")
        set_loom(monkeypatch, unsandboxed_shell=True)
        plan = commands.plan("git_command", arguments="status")
        assert isinstance(plan, CallPlan)
        assert plan.effect == "changes"
        commands.allow(policy="read_only")
        assert not commands.offers("git_command")
    finally:
        support.find_support.cache_clear()


def test_network_is_used_only_if_it_is_allowed(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_loom(monkeypatch, shell_network=True)
    commands.allow(allows_network=True)
    plan = commands.plan("git_command", arguments="fetch origin")
    assert isinstance(plan, CallPlan)
    assert plan.note == "Runs in a sandbox with network access."
    assert plan.kind_key == "git:fetch"
