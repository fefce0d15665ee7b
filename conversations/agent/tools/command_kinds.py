"""What "always" stands for in a question about a shell command.

Where the command is one of ``PLAIN_PROGRAMS`` with plain words, it is that program; it runs nothing
but itself, so allowing it allows no other. Everything else, however short, is allowed as it stands,
letter for letter, or not at all.
"""

import json
import re
import shlex

from conversations.domain.tool_policy import PLAIN_PROGRAMS, Kind

from .commands import hides_something
from .option_words import NotAllowed, read_list, read_words

# Of a command and its folder that "always" may stand for: what is allowed has to be read in a
# button and in a list.
MAX_LINE_CHARS = 160

# Words that mean the same to a shell as they stand there: no syntax, no expansion. What is between
# single quotes is anything.
_PLAIN_WORDS = re.compile(
    r"""(?:[ \w%+,./:=@-]|'[^'\n]*'|"[^"\n$`\\!]*")+""",
)

# Programs of which some options run another: those that do not.
_OPTIONS = {
    "diff": """-i --ignore-case -E --ignore-tab-expansion -Z --ignore-trailing-space -b
        --ignore-space-change -w --ignore-all-space -B --ignore-blank-lines -I=
        --ignore-matching-lines= -a --text -c -C= -u -U= --unified? --context? -q --brief -e --ed
        -n --rcs -y --side-by-side -W= --width= --left-column --suppress-common-lines -p
        --show-c-function -F= --show-function-line= --label= -t --expand-tabs -T --initial-tab
        -r --recursive -N --new-file -x= --exclude= -s --report-identical-files -d --minimal
        --color? --strip-trailing-cr""",
    "rg": """-n --line-number -N --no-line-number -i --ignore-case -S --smart-case -s
        --case-sensitive -w --word-regexp -x --line-regexp -F --fixed-strings -v --invert-match
        -l --files-with-matches --files-without-match -c --count --count-matches -o
        --only-matching -e= --regexp= -g= --glob= --iglob= -t= --type= -T= --type-not= -A=
        --after-context= -B= --before-context= -C= --context= -m= --max-count= -d= --max-depth=
        -u --unrestricted --hidden --no-ignore -U --multiline -P --pcre2 --files --type-list
        --sort= --sortr= --json --heading --filename -I -H --with-filename --column --color=
        --stats -q --quiet --trim -a --text -r= --replace= -j= --threads= -0 --null --vimgrep""",
    "sort": """-b --ignore-leading-blanks -d --dictionary-order -f --ignore-case -g
        --general-numeric-sort -i --ignore-nonprinting -M --month-sort -h --human-numeric-sort -n
        --numeric-sort -R --random-sort -r --reverse -V --version-sort -c --check? -C -k= --key=
        -m --merge -o= --output= -s --stable -t= --field-separator= -u --unique -z
        --zero-terminated""",
}

# ``find`` has no bundles and no abbreviations; left out is what runs, deletes or writes.
_FIND_WORDS = frozenset(
    """-H -L -P -a -amin -and -anewer -atime -cmin -cnewer -ctime -daystart -depth -empty
    -executable -false -follow -gid -group -ignore_readdir_race -iname -inum -ipath -iregex
    -links -ls -maxdepth -mindepth -mmin -mount -mtime -name -newer -noleaf -not -o -or -path
    -perm -print -print0 -printf -prune -quit -readable -regex -regextype -samefile -size -true
    -type -uid -user -wholename -writable -xdev -xtype
    """.split()  # noqa: SIM905 (forty quoted names are harder to read)
)
_NUMBER = re.compile(r"[-+]\d+[a-zA-Z]?")


def kind_of(command: str, *, folder: str = "") -> Kind | None:
    """``folder`` is where it runs, relative to the workspace's; empty: there. None where it holds
    what cannot be seen, has several lines or is too long to be read."""
    if hides_something(command):
        return None
    if program := _plain_program(command):
        limited = program == "find" or program in _OPTIONS
        which = "options that run no other program" if limited else "any arguments"
        return Kind(key=f"shell:{program}", label=f"“{program}” with {which}")
    if not command.strip() or not command.isprintable() or hides_something(folder):
        return None
    if len(command) + len(folder) > MAX_LINE_CHARS:
        return None
    where = f" in {folder}" if folder else ""
    key = json.dumps([folder, command], ensure_ascii=False)
    return Kind(key=f"line:{key}", label=f"exactly “{command}”{where}")


def _plain_program(command: str) -> str:
    """The program, if the command is it with plain words and options that run no other."""
    if not _PLAIN_WORDS.fullmatch(command):
        return ""
    program, *words = shlex.split(command) or [""]
    if program not in PLAIN_PROGRAMS or not _runs_itself_only(program, words):
        return ""
    return program


def _runs_itself_only(program: str, words: list[str]) -> bool:
    if program == "find":
        options = [word for word in words if word.startswith("-")]
        return all(word in _FIND_WORDS or _NUMBER.fullmatch(word) for word in options)
    if program not in _OPTIONS:
        return True
    try:
        read_words(words, read_list(_OPTIONS[program]))
    except NotAllowed:
        return False
    return True
