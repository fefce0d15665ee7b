"""The kinds of shell command that a person can approve for the future."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.agent.tools.commands import MAX_LINE_CHARS, kind_of
from conversations.domain.tool_calls import PLAIN_PROGRAMS, is_kind


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("ls", "ls"),
        ("ls -la src tests", "ls"),
        ("  wc -l 'a b.txt' \"c d\"", "wc"),
        ("grep -rn 'def .*(self|cls)$' src", "grep"),
        ("echo 'a; b | c $(d) `e` > f'", "echo"),
        ("find src -name '*.py' -mtime -7 -not -path './x/*'", "find"),
        ("sort -rnk2 -t, a.csv", "sort"),
        ("diff -ru a b", "diff"),
        ("rg -n -g '*.py' word src", "rg"),
        ("rm -rf build", "rm"),
    ],
)
def test_kind_of_a_plain_command_is_its_program(command: str, program: str) -> None:
    for folder in ("", "src"):
        kind = kind_of(command, folder=folder)
        assert kind is not None
        assert kind.key == f"shell:{program}"
        assert kind.label.startswith(f"“{program}” with ")


RUNS_OTHERS = (
    """
setsid rm x
ionice -c3 rm x
chrt -b 0 rm x
taskset 1 rm x
flock x rm x
script -c 'rm x'
setpriv rm x
unshare rm x
prlimit rm x
rbash -c 'rm x'
uv run x
npx x
parallel rm
env rm x
sudo rm x
xargs rm
nice rm x
timeout 5 rm x
bash run.sh
busybox sh
python -c 'x'
python3.13 x.py
perl -e 'x'
awk 'BEGIN { system("x") }'
sed -n 1e x
sed s/a/b/w x
less x
man -P x ls
make
pytest
npm test
tar -I x -xf y
tar --to-command=x -xf y
tar --checkpoint-action=exec=x -cf y z
zip -TT x y z
split --filter=x y
file -z x
tree -R -H x
git log
ssh x
test -v 'a[$(rm x)]'
printf -v 'a[$(rm x)]' y
[ -v 'a[$(rm x)]' ]
. run.sh
source run.sh
eval 'rm x'
exec rm x
command rm x
builtin eval x
trap 'rm x' EXIT
time ls
coproc ls
if ls
find . -exec rm x +
find . -execdir rm x +
find . -ok rm x +
find . -okdir rm x +
find . -delete
find . -fprint x
find . -fls x
find -files0-from x
sort --compress-program=x y
sort --comp x y
sort --compress-pro=./x -S1 y
sort -nT. --compress-program ./x y
diff -l a b
diff --pag a b
rg --pre ./x y
rg --pre=./x y
rg --hostname-bin ./x y
rg -z x
./ls
/bin/ls
bin/ls
~/ls
\\ls
ls; rm x
ls && rm x
ls || rm x
ls | tee x
ls & rm x
ls > x
ls 2>&1
ls < x
ls <<< x
ls $(rm x)
ls `rm x`
ls "$(rm x)"
ls "`rm x`"
ls $HOME
ls ${x:-y}
ls *
ls [ab]
ls {a,b}
ls a?
ls ~
ls "it's" $(rm x) 'a'
ls 'a'$(rm x)'b'
ls $'a'
ls \\a
ls "a\\"b"
ls # x
ls !x
A=1 ls
PATH=. ls
ls() rm x
(ls)
{ ls; }
! ls
LS
l* x
'open
"open
"""
    + "ls\u00a0-la\n"
)


@pytest.mark.parametrize("command", RUNS_OTHERS.strip("\n").split("\n"))
def test_kind_of_any_other_command_is_its_exact_line(command: str) -> None:
    kind = kind_of(command)
    assert kind is None or kind.key == f"line:{json.dumps(['', command], ensure_ascii=False)}"
    assert kind is None or kind.label == f"exactly “{command}”"


def test_kind_of_a_line_depends_on_its_text_and_folder() -> None:
    keys = [
        kind_of(command, folder=folder)
        for command, folder in [("make", ""), ("make ", ""), ("make", "a"), ('a", "make', "")]
    ]
    assert len({kind.key for kind in keys if kind}) == 4


@pytest.mark.parametrize(
    "command",
    [
        "",
        "  ",
        "make\nrm x",
        "ls\nrm x",
        "ls\r",
        "make\t",
        "echo \u202ex",
        "ls \u200b",
        "make " + "x" * MAX_LINE_CHARS,
    ],
)
def test_unreadable_command_has_no_kind(command: str) -> None:
    assert kind_of(command) is None


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        ("cp a .envrc", ""),
        ("mv a .vscode/tasks.json", ""),
        ("ln -s a '.env'rc", ""),
        ("cp -r a .claude", "sub"),
        ("cp ../a tasks.json", ".vscode"),
        ("tee x/.envrc", ""),
        ("sort a -o.envrc", ""),
        ("sort a --output=.envrc", ""),
        ("make > .envrc", ""),
    ],
)
def test_command_that_names_a_self_running_file_has_no_kind(command: str, folder: str) -> None:
    assert kind_of(command, folder=folder) is None


def test_outdated_kind_is_not_accepted() -> None:
    programs = ("shell:setsid", "shell:pytest", "shell:./gradlew", "shell:/bin/sh", "shell:")
    for key in (*programs, "mcp:a:b", ""):
        assert not is_kind(key)
    for key in (
        "shell:ls",
        "files",
        "git:commit",
        "fetch:example.org",
        f"mcp:a:b:{'0' * 64}",
        'line:["", "x"]',
    ):
        assert is_kind(key)


SHELL_TEXT = st.text("ls -ab'\"\\$`(){};&|<>*?[]~#!=/.,\n\t \u00e9", max_size=20)


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with programs that only print their name and arguments."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("ls", "a", "b", "s", "l"):
        (folder / name).write_text('#!/bin/sh\nprintf "%s\\0" RAN "${0##*/}" "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@given(text=SHELL_TEXT)
def test_bash_runs_only_the_program_of_a_plain_command(text: str, bin_folder: Path) -> None:
    """If a command counts as its program, bash runs that program once and nothing else."""
    command = f"ls {text}"
    kind = kind_of(command)
    if kind is None or kind.key != "shell:ls":
        return
    empty = bin_folder / "empty"
    empty.mkdir(exist_ok=True)
    done = subprocess.run(
        ["/bin/bash", "-c", command],
        env={"PATH": str(bin_folder)},
        cwd=empty,
        capture_output=True,
        check=True,
    )
    assert done.stdout.startswith(b"RAN\0ls\0")
    assert done.stdout.count(b"RAN\0") == 1
    assert not os.listdir(empty)


def test_plain_programs_exclude_builtins_that_expand_arguments() -> None:
    assert not PLAIN_PROGRAMS & {"printf", "test", "[", "declare", "let", "read", "type", "hash"}
