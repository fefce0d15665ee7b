"""Options of git calls: parsed as git parses them and compared with git itself."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.agent.tools import git_command
from conversations.agent.tools.git_options import CONFIG_READS, CONFIG_WRITES, FORMS
from conversations.agent.tools.git_words import WordNotAllowed, read_call, read_list
from conversations.agent.tools.tool import ToolContext, ToolResult

from .commanding import Commands, commands, root

__all__ = ["commands", "root"]

RUNS_PROGRAMS = [
    "grep -nO/x/prog one",
    "grep -nO one",
    "grep -inO./x one",
    "grep -e -O./x one",
    "grep -e -- -O./x one",
    "grep -f -- -O./x one",
    "grep --open-files=./x one",
    "grep --op one",
    "grep --textconv one",
    "grep --text -O one",
    "grep --index one",
    "grep --no-index one",
    "grep -- -O./x one",
    "rebase -ix ./x HEAD",
    "rebase -qx ./x HEAD",
    "rebase -fx./x HEAD",
    "rebase --ex ./x HEAD",
    "rebase --exec=./x HEAD",
    "rebase --onto -- -x ./x HEAD",
    "rebase -s ./x HEAD",
    "rebase -S HEAD",
    "merge -s ./x topic",
    "merge --strategy=./x topic",
    "merge -Sx topic",
    "merge --verify-sig topic",
    "clone -u ./x a b",
    "clone -qu./x a b",
    "clone -nu ./x a b",
    "clone --upload-pack=./x a b",
    "clone --upl ./x a b",
    "clone -c core.fsmonitor=./x a b",
    "clone -qc core.fsmonitor=./x a b",
    "clone --config=core.fsmonitor=./x a b",
    "clone --template=./x a b",
    "clone --recurse-submodules a b",
    "clone --recursive a b",
    "clone --separate-git-dir=/x a b",
    "clone --bundle-uri=x a b",
    "clone ext::sh b",
    "clone other::x b",
    "clone other://x b",
    "fetch --upload-pack ./x origin",
    "fetch --recurse-submodules origin",
    "fetch ext::sh",
    "fetch -- ext::sh",
    "pull --upl=./x origin",
    "pull -s ./x origin",
    "push --receive-pack=./x origin",
    "push --exec ./x origin",
    "push --rec=./x origin",
    "push --repo=ext::sh",
    "push --signed origin",
    "ls-remote --exec=./x origin",
    "ls-remote ext::sh",
    "remote add x ext::sh",
    "remote add -f x https://example.org",
    "remote add x /srv/secret.git",
    "remote add x ../../secret",
    "remote set-url origin file:///srv/secret.git",
    "remote set-url --push origin ext::sh",
    "diff --ext-diff",
    "diff --ext",
    "diff --textconv",
    "diff --output=stolen",
    "diff --outp stolen",
    "diff --no-index /etc/passwd /dev/null",
    "diff -O/etc/passwd",
    "diff -pO/etc/passwd",
    "diff -- --output=stolen",
    "log -p --textc",
    "log --show-signature",
    "log --remerge-diff",
    "log --diff-merges=remerge",
    "log --grep -- --output=stolen",
    "log --since -p --output=stolen",
    "log --alternate-refs",
    "show --ext-diff",
    "blame --contents=/etc/passwd a.txt",
    "blame -S/etc/passwd a.txt",
    "cat-file --textconv HEAD:a.txt",
    "cat-file --filters HEAD:a.txt",
    "cat-file --filt HEAD:a.txt",
    "stash show --ext-diff",
    "stash list -p --textconv",
    "stash -p",
    "stash push --patch",
    "stash evil",
    "reflog show -p --ext-diff",
    "commit -S -m x",
    "commit -aSx -m x",
    "commit --gpg -m x",
    "commit --trailer x:y -m x",
    "commit -p",
    "commit --interactive",
    "tag -s v1 -m x",
    "tag -u key v1",
    "tag -v v1",
    "add -i",
    "add -Ap",
    "add --edit",
    "am -i x.patch",
    "am -S x.patch",
    "apply --unsafe-paths x.diff",
    "apply --build-fake-ancestor=/x x.diff",
    "checkout -p",
    "checkout -qp",
    "checkout --recurse-submodules main",
    "reset --recurse main",
    "init --template=./x",
    "init --separate-git-dir /x",
    "update-index --fsmonitor",
    "worktree repair",
    "notes edit",
    "notes merge x",
    "bisect run ./x",
    "submodule foreach ./x",
    "filter-branch --tree-filter ./x",
    "difftool -x ./x",
    "mergetool --tool=x",
    "send-email --sendmail-cmd=./x",
    "remote-ext x",
    "config -e",
    "config --edit",
    "config --list --edit",
    "config --get-all --no-get-all core.fsmonitor x",
    "config --file=/etc/x --list",
    "config -f /etc/x a.b",
    "config --global user.name x",
    "config --rename-section user core",
    "config core.fsmonitor ./x",
    "config CORE.fsMonitor ./x",
    "config --add core.hooksPath x",
    "config --replace-all core.pager x",
    "config set core.editor x",
    "config alias.st !./x",
    "config filter.x.clean ./x",
    "config diff.x.textconv ./x",
    "config diff.external ./x",
    "config merge.x.driver ./x",
    "config include.path x",
    "config includeIf.gitdir:/.path x",
    "config credential.helper x",
    "config core.sshCommand x",
    "config core.worktree /",
    "config core.attributesFile x",
    "config remote.origin.url ext::sh",
    "config remote.origin.uploadpack ./x",
    "config submodule.x.update !./x",
    "config user.name.fsmonitor x",
    "config branch.main.remote ext::sh",
    "config branch.main.remote https://example.org",
    "config branch.main.remote ../x",
    "config remote.pushDefault ext::sh",
    "config url.ext::sh.insteadOf https://example.org",
    "config init.templateDir x",
]


@pytest.mark.parametrize("line", RUNS_PROGRAMS)
def test_options_that_can_run_a_program_are_refused_in_every_form(line: str) -> None:
    with pytest.raises(WordNotAllowed) as refused:
        read_call(line.split())
    assert str(refused.value).endswith(".")


def test_refusal_names_the_option() -> None:
    for line, reason in {
        "grep -nO./x one": "The option -O (in -nO./x) is not allowed here.",
        "log --onel": "The option --onel is not allowed: write options in full, as in --oneline.",
        "commit -m -x": "Write -m-x for a value that begins with '-'.",
        "commit --message": "The option --message needs a value.",
        "diff -- -x": "Write ./-x for a path that begins with '-'.",
    }.items():
        with pytest.raises(WordNotAllowed, match=f"^{re.escape(reason)}$"):
            read_call(line.split())


@pytest.mark.parametrize(
    ("line", "effect"),
    [
        ("log -5 --oneline -p -M90% --since 2.weeks -n 3 --author=a -S word -G x", "reads"),
        ("log -L1,2:a.txt --graph --all --no-decorate --format=%H -- a.txt", "reads"),
        ("diff -U5 -w --cached --no-color HEAD~1 HEAD -- a.txt", "reads"),
        ("grep -niE -C3 -e a -e-b -A 2 --and ( -e c ) HEAD -- *.py", "reads"),
        ("status -sb -uno --porcelain=v2", "reads"),
        ("blame -L 1,5 -wCCM a.txt", "reads"),
        ("show --stat HEAD:a.txt", "reads"),
        ("stash show -p stash@{0}", "reads"),
        ("reflog -5", "reads"),
        ("reflog main", "reads"),
        ("branch -avv --sort=-committerdate", "reads"),
        ("branch --merged", "reads"),
        ("branch --merged main", "reads"),
        ("branch --no-list new", "changes"),
        ("branch --sort=x new", "changes"),
        ("tag -n3 -l v*", "reads"),
        ("config user.name", "reads"),
        ("config --get-regexp ^user", "reads"),
        ("config get --all user.name", "reads"),
        ("config -l --show-origin", "reads"),
        ("ls-remote", "changes"),
        ("remote show origin", "changes"),
        ("range-diff a...b", "changes"),
        ("commit -am message --no-verify --no-edit --author=x", "changes"),
        ("rebase -i --autosquash --onto main -X theirs -s ort topic", "changes"),
        ("merge --no-ff -m x -X ours topic", "changes"),
        ("push -u origin HEAD --force-with-lease=main:abc", "changes"),
        ("clone --depth 1 -qb main https://example.org/x y", "changes"),
        ("clone git@example.org:x/y.git", "changes"),
        ("remote add x ../x", None),
        ("remote add x git@example.org:x.git", "changes"),
        ("config user.name Rose", "changes"),
        ("config --unset user.name", "changes"),
        ("config branch.a/b.c.remote origin", "changes"),
        ("config advice.detachedHead false", "changes"),
    ],
)
def test_ordinary_options_are_accepted(line: str, effect: str | None) -> None:
    if effect is None:
        with pytest.raises(WordNotAllowed):
            read_call(line.split())
        return
    assert read_call(line.split()).changes == (effect == "changes")


def test_calls_that_write_the_configuration_are_recognised() -> None:
    for line, writes in [
        ("config user.name Rose", True),
        ("config user.name", False),
        ("config --list", False),
        ("remote add x https://example.org", True),
        ("remote -v", False),
        ("branch new", True),
        ("branch --list", False),
        ("branch -u origin/main", True),
        ("checkout -b new", True),
        ("checkout new", True),
        ("checkout -- a.txt", False),
        ("checkout HEAD a.txt", False),
        ("switch -c new", True),
        ("push origin", False),
        ("push -u origin main", True),
        ("clone https://example.org", True),
        ("init", True),
        ("worktree add ../x", True),
        ("commit -m x", False),
        ("rebase main", False),
        ("merge topic", False),
        ("stash", False),
    ]:
        assert read_call(line.split()).writes_config == writes, (line, writes)


# Comparison with git itself


def run_git(*words: str, folder: Path | None = None, **environment: str) -> str:
    done = subprocess.run(
        [str(shutil.which("git")), *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | environment,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=20,
    )
    return done.stdout + done.stderr


VALUE = (" <", " (", " [", "=<", "=[", " .")
WRITTEN_BY_HAND = ("rev-list", "range-diff")


@cache
def help_of(form: str) -> dict[str, str]:
    """Return the options in git's own help, with marks as in the lists."""
    found = {}
    for line in re.findall(
        r"^ {4}(-.*?)(?:\s{2,}.*)?$", run_git(*form.split(), "-h"), re.MULTILINE
    ):
        if (option := re.match(r"((?:-[^-], )?--?[^-][\w-]*)(.*)", line)) is None:
            continue
        value = "?" if option[2].startswith("[") else "=" if option[2][:2] in VALUE else ""
        found |= dict.fromkeys(option[1].split(", "), value)
    return found


@pytest.mark.parametrize("form", sorted(set(FORMS) - set(WRITTEN_BY_HAND)))
def test_lists_agree_with_git_about_the_values_of_options(form: str) -> None:
    known = help_of(form)
    ours = read_list(FORMS[form].options).items()
    said = [(name, mark[:1]) for name, mark in ours if name in known and mark != "~"]
    assert said == [(name, known[name]) for name, _ in said]


def long_options() -> Iterator[tuple[str, str]]:
    for form in FORMS:
        for word in run_git(*form.split(), "--git-completion-helper-all").split():
            if word.startswith("--") and len(word) > 2:
                yield form, word.rstrip("=")


def test_unlisted_options_of_git_and_their_prefixes_are_refused() -> None:
    tried: set[tuple[str, str]] = set()
    for form, option in long_options():
        allowed = read_list(FORMS[form].options)
        for end in range(3, len(option) + 1):
            word = option[:end]
            if word in allowed or f"--{word.removeprefix('--no-')}" in allowed:
                continue
            if (form, word) in tried:
                continue
            tried.add((form, word))
            for written in (word, f"{word}=./x"):
                with pytest.raises(WordNotAllowed):
                    read_call([*form.split(), written])
    assert len(tried) > 1000


LISTS = {**{name: form.options for name, form in FORMS.items()}, "config": CONFIG_READS}
NOT_ALLOWED = {
    "grep": "O",
    "rebase": "xS",
    "clone": "uc",
    "commit": "Sp",
    "tag": "suv",
    "diff": "O",
    "log": "O",
    "config": "fe",
}


@given(st.data())
def test_bundle_of_flags_cannot_hide_a_disallowed_flag(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(sorted(NOT_ALLOWED)))
    allowed = read_list(f"{LISTS[form]} {CONFIG_WRITES if form == 'config' else ''}")
    flags = [
        name[1] for name, mark in allowed.items() if len(name) == 2 and not mark and name != "-#"
    ]
    before = data.draw(st.lists(st.sampled_from(sorted(flags) or ["z"]), max_size=4))
    bad = data.draw(st.sampled_from(NOT_ALLOWED[form]))
    after = data.draw(st.text("abxO/.=-", max_size=5))
    plain = data.draw(st.lists(st.sampled_from(["one", "HEAD", "--"]), max_size=2))
    with pytest.raises(WordNotAllowed):
        read_call([form, *plain, f"-{''.join(before)}{bad}{after}", "./x"])


# Reading calls do not run programs that a repository configures


TRAPS = (
    ('diff "x"', "textconv"),
    ("diff", "external"),
    ('merge "x"', "driver"),
    ("core", "fsmonitor"),
    ("gpg", "program"),
    ('remote "origin"', "uploadpack"),
)
"""Settings that make git run a program in a reading call, unless ``git_command`` prevents it."""


def made_link(trap: Path, name: str) -> Path:
    link = trap.with_name(f"trap-{name}")
    link.symlink_to(trap)
    return link


@pytest.fixture
def traps(commands: Commands, root: Path) -> Iterator[int]:
    """A repository that configures a program for each setting in ``TRAPS``.

    The program reports through a pipe that it ran, because a pipe works in a read-only folder.
    """

    def git(*words: str) -> None:
        run_git("-c", "user.name=x", "-c", "user.email=x@y", *words, folder=root)

    git("init", "-q", "-b", "main")
    (root / "a.txt").write_text("one\n")
    git("add", "-A")
    git("commit", "-qm", "first")
    git("checkout", "-qb", "topic")
    (root / "a.txt").write_text("two\n")
    (root / "g.txt").write_text("gone\n")
    git("add", "-A")
    git("commit", "-qm", "second")
    git("checkout", "-q", "main")
    (root / "a.txt").write_text("three\n")
    git("commit", "-qam", "third")
    git("merge", "-q", "-X", "ours", "-m", "merge", "topic")
    (root / "a.txt").write_text("four\n")
    git("stash", "-q")
    (root / "a.txt").write_text("five\n")
    blob = subprocess.check_output(["git", "rev-parse", "topic:g.txt"], cwd=root, text=True)
    head = subprocess.check_output(["git", "cat-file", "commit", "HEAD"], cwd=root, text=True)
    signed = head.replace(
        "\n\n", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\n", 1
    )
    made = subprocess.run(
        ["git", "hash-object", "-t", "commit", "-w", "--stdin"],
        input=signed,
        capture_output=True,
        text=True,
        cwd=root,
        check=True,
    )
    git("update-ref", "refs/heads/main", made.stdout.strip())
    pipe = root / ".git/ran"
    os.mkfifo(pipe)
    trap = root / "trap"
    trap.write_text(f'#!/bin/sh\nprintf "%s " "${{0##*/}}" > {pipe}\n')
    trap.chmod(0o755)
    git("update-ref", "refs/heads/lost", "topic")
    (root / ".gitattributes").write_text("*.txt diff=x merge=x\n")
    settings = (
        "".join(f"[{section}]\n\t{name} = {made_link(trap, name)}\n" for section, name in TRAPS)
        + f'[remote "origin"]\n\turl = {root}\n\tpromisor = true\n'
        "[extensions]\n\tpartialClone = origin\n[core]\n\trepositoryFormatVersion = 1\n"
        "[log]\n\tshowSignature = true\n\tdiffMerges = remerge\n"
    )
    config = root / ".git/config"
    config.write_text(config.read_text() + settings)
    objects = root / ".git/objects"
    (objects / blob[:2] / blob[2:].strip()).unlink()
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    yield reader
    os.close(reader)


LOOKING = [
    "status",
    "status -v",
    "diff",
    "diff HEAD~1",
    "diff-tree -p HEAD~1 HEAD",
    "log -p",
    "log -m -p",
    "log --format=%G?%GS",
    "log --show-notes topic",
    "show HEAD",
    "show -m HEAD",
    "show topic:g.txt",
    "blame a.txt",
    "annotate a.txt",
    "grep one",
    "grep two topic",
    "stash show",
    "stash show -p",
    "stash list -p",
    "reflog -p",
    "reflog show -p",
    "whatchanged -p",
    "shortlog -s HEAD",
    "for-each-ref --format=%(contents:signature)",
    "tag -l --format=%(contents)",
    "branch -vv",
    "describe --always --dirty",
    "rev-list --objects topic",
    "cat-file -p topic:g.txt",
    "cherry -v main topic",
    "show-branch --all",
    "ls-files -m",
    "config --list",
    "worktree list",
    "remote -v",
]


def test_reading_calls_run_no_program_of_the_repository(
    commands: Commands, traps: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only git's options and environment prevent it, because this test uses no sandbox."""

    async def execute(
        context: ToolContext, words: Sequence[str], *, environment: dict[str, str], **_: object
    ) -> ToolResult:
        return ToolResult(ok=True, output=run_git(*words[1:], folder=root, **environment))

    monkeypatch.setattr(git_command, "execute", execute)
    commands.allow(policy="read_only")
    for line in LOOKING:
        words: Sequence[str] = line.split()
        result = commands.git(*words)
        assert "not taken" not in result.output, line
        assert not read_pipe(traps), line


def test_plain_git_runs_every_program_of_the_repository(traps: int, root: Path) -> None:
    fired: set[bytes] = set()
    for line in LOOKING:
        run_git(*line.split(), folder=root)
        fired |= set(read_pipe(traps).split())
    assert fired == {f"trap-{name}".encode() for _, name in TRAPS}


def read_pipe(pipe: int) -> bytes:
    try:
        return os.read(pipe, 1000)
    except BlockingIOError:
        return b""
