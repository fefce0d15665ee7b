"""Files that other programs run by themselves: editors, shells, assistants and git's hook managers
do so when somebody opens or enters a folder, or commits in it.

Nobody types a command for it, so a change of such a file is easily overlooked. What runs only when
it is asked for (a Makefile, the scripts of ``package.json``, tests) does not count.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from conversations.domain.messages import say

# What git executes or obeys when somebody uses it in a folder, and what of it is harmless.

CONFIGS = ("config", "config.worktree")
HOOKS = "hooks"
COMMON = "commondir"
# Paths in a git folder: configuration, programs, the filters of files, where all of this is read
# from instead, and two old forms of configuration.
PARTS = (*CONFIGS, HOOKS, "info/attributes", COMMON, "remotes", "branches")

_TELLING = {"head", "objects", "refs", *(part.partition("/")[0] for part in PARTS)}

# What ``git rebase --continue`` and its like do next; a step may be any program.
STEPS = ("rebase-merge/git-rebase-todo", "rebase-merge/git-rebase-todo.backup", "sequencer/todo")

# They name how to merge then. Git runs the program ``git-merge-NAME``, and ``../x`` is a name.
STRATEGIES = ("rebase-merge/strategy", "sequencer/opts")

# What the name of a part ends with that was put aside. Git knows no such name.
DISARMED = ".disabled"

# Of a file that is read to find what is harmless in it; a larger one is put aside.
MAX_CONFIG_BYTES = 256 * 1024

_IGNORED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def is_git_name(name: str) -> bool:
    """Whether a name stands for ``.git`` on any file system: without regard to case, with signs
    that macOS ignores, and as Windows shortens it."""
    plain = _IGNORED.sub("", name).casefold().rstrip(". ")
    return plain in (".git", "git~1")


def is_git_folder(names: Iterable[str]) -> bool:
    """Whether git takes a folder that holds these names for a repository."""
    found = {name.casefold() for name in names}
    return "head" in found and ({"objects", "refs"} <= found or "commondir" in found)


def completes_git_folder(names: Iterable[str], name: str) -> bool:
    """Whether git would obey what is written to ``name``, an entry of a folder that holds
    ``names``: the folder is a repository, or becomes one by it."""
    return name.casefold() in _TELLING and is_git_folder([*names, name])


def is_hook(name: str) -> bool:
    """Whether an entry of a folder of hooks may be run: samples are not."""
    return not name.endswith((".sample", DISARMED))


# What a configuration may say without naming a program, a file or a place. ``branch.*`` are the
# keys of sections that have a name. ``!``: what git itself writes there, and nobody sets by ``git
# config``.
_KEYS = {
    "author": "name email",
    "blame": "date",
    "branch": "autosetupmerge autosetuprebase sort",
    "branch.*": "remote merge rebase pushremote description",
    "checkout": "defaultremote",
    "color": "ui branch diff status",
    "column": "ui",
    "commit": "cleanup status verbose",
    "committer": "name email",
    "core": """!repositoryformatversion filemode !bare !logallrefupdates ignorecase longpaths
        precomposeunicode !symlinks autocrlf eol safecrlf quotepath abbrev !compression
        whitespace commentchar !sparsecheckout !sparsecheckoutcone""",
    "diff": "algorithm renames renamelimit colormoved context mnemonicprefix noprefix",
    "extensions": "!objectformat !worktreeconfig !partialclone !refstorage",
    "feature": "manyfiles",
    "fetch": "prune prunetags",
    "gc": "auto",
    "grep": "linenumber patterntype",
    "i18n": "!commitencoding !logoutputencoding",
    "index": "!sparse !version",
    "init": "defaultbranch",
    "lfs": "!repositoryformatversion",
    "log": "date decorate follow abbrevcommit mailmap",
    "merge": "ff conflictstyle renames stat",
    "pull": "rebase ff",
    "push": "default followtags autosetupremote useforceifincludes",
    "rebase": "autostash autosquash stat updaterefs",
    "remote": "pushdefault",
    "remote.*": """!url !pushurl !fetch !push !tagopt !prune !prunetags !mirror !promisor
        !partialclonefilter""",
    "rerere": "enabled autoupdate",
    "stash": "showpatch showstat",
    "status": "short branch showuntrackedfiles showstash aheadbehind",
    "submodule": "!active",
    "submodule.*": "!url !active !branch",
    "tag": "sort",
    "user": "name email !useconfigonly",
}

_HARMLESS = {section: frozenset(keys.replace("!", "").split()) for section, keys in _KEYS.items()}
_SETTABLE = {
    section: frozenset(key for key in keys.split() if not key.startswith("!"))
    for section, keys in _KEYS.items()
}
_ADDRESSES = ("url", "pushurl", "remote", "pushremote", "pushdefault", "defaultremote")
_HEADER = re.compile(r'\s*\[([A-Za-z0-9-]+)(?:[ \t]+"([^"\\\x00-\x1f]*)")?\]\s*')
_ENTRY = re.compile(r'\s*([A-Za-z][A-Za-z0-9-]*)(?:[ \t]*=[ \t]*([^"\\#;\x00-\x08\x0a-\x1f]*))?')
_STRATEGY = re.compile(rb"(?:ort|recursive|resolve|octopus|ours|subtree)?\s*")
_STRATEGY_OPTION = re.compile(rb"\bstrategy(?!-option\b)[ \t]*(?:=[ \t]*([^\n]*)|)")
_STEP = re.compile(rb"[ \t]*(?:x|exec)(?:[ \t\r]|$)")


def is_settable(section: str, key: str, *, has_name: bool = False) -> bool:
    """Whether ``git config`` may set it, which only what is harmless may be."""
    return _holds(_SETTABLE, section, key, has_name=has_name)


def takes_address(key: str) -> bool:
    """Whether git takes the value for an address where it is not the name of a remote."""
    return key.lower() in _ADDRESSES


def _holds(keys: Mapping[str, frozenset[str]], section: str, key: str, *, has_name: bool) -> bool:
    section = section.lower()
    if section == "advice":
        return not has_name
    return key.lower() in keys.get(f"{section}.*" if has_name else section, ())


def clean_config(
    data: bytes, *, known: bytes = b"", may_work_in: Callable[[str], bool] = lambda _: False
) -> bytes:
    """A configuration of which everything is a comment that is neither harmless nor a line of
    ``known`` in the same section. ``may_work_in`` judges ``core.worktree``, a path.

    Git's own grammar has escapes, quotes and lines that go on: a line that makes use of them is
    kept only if it is known as a whole."""
    kept = {(header, entry) for header, entry in _logical_lines(known)}
    lines: list[bytes] = []
    is_in_known_place = True
    for header, entry in _logical_lines(data):
        is_known = (header, entry) in kept
        if _is_header(entry):
            is_in_known_place = is_known or _HEADER.fullmatch(_text(entry)) is not None
            is_kept = is_in_known_place
        elif _is_blank(entry):
            is_kept = True
        else:
            is_kept = is_in_known_place and (is_known or _is_harmless(header, entry, may_work_in))
        mark = b"" if is_kept else b"# disabled: "
        lines += [mark + line for line in entry.split(b"\n")]
    return b"\n".join(lines)


def clean_steps(data: bytes, *, known: bytes = b"") -> bytes:
    """The steps of a rebase of which those that run a program are comments, but for the lines of
    ``known``."""
    kept = set(known.split(b"\n"))
    return b"\n".join(
        b"# disabled: " + line if _STEP.match(line) and line not in kept else line
        for line in data.split(b"\n")
    )


def names_own_strategy(data: bytes) -> bool:
    """Whether one of the files that name a way to merge names one of git's own, or none."""
    if _STRATEGY.fullmatch(data):
        return True
    lines = data.lower().split(b"\n")
    values = [found[1] for line in lines for found in _STRATEGY_OPTION.finditer(line)]
    is_configuration = all(b"=" in line or line.strip()[:1] in (b"", b"[") for line in lines)
    return is_configuration and all(_STRATEGY.fullmatch(value or b"-") for value in values)


def paths_named_by(data: bytes) -> tuple[list[str], list[str]]:
    """The folders of hooks and the further configurations that a configuration leads to, as they
    are written."""
    hooks, includes = [], []
    for header, line in _logical_lines(data):
        key, _, value = line.decode(errors="replace").rpartition("]")[2].partition("=")
        path, section = value.strip().strip('"'), header.lower()
        if path and key.strip().lower() == "hookspath":
            hooks.append(path)
        if path and key.strip().lower() == "path" and b"include" in section:
            includes.append(path)
    return hooks, includes


def _logical_lines(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The lines, those that go on after a backslash as one, each with its header."""
    header = waiting = b""
    for line in data.split(b"\n"):
        line = waiting + line
        waiting = b""
        if line.rstrip(b"\r").endswith(b"\\") and not _is_blank(line):
            waiting = line + b"\n"
            continue
        if _is_header(line):
            header = line
        yield header, line
    if waiting:
        yield header, waiting.removesuffix(b"\n")


def _is_header(line: bytes) -> bool:
    return line.lstrip().lstrip(b"\xef\xbb\xbf").startswith(b"[")


def _is_blank(line: bytes) -> bool:
    return not line.strip() or line.lstrip()[:1] in (b"#", b";")


def _is_harmless(header: bytes, line: bytes, may_work_in: Callable[[str], bool]) -> bool:
    """Whether a repository may be told this by somebody who is not trusted."""
    section, entry = _HEADER.fullmatch(_text(header)), _ENTRY.fullmatch(_text(line))
    if section is None or entry is None:
        return False
    key, value = entry[1], (entry[2] or "").strip()
    if (section[1].lower(), key.lower()) == ("core", "worktree"):
        return may_work_in(value)
    # "ext::sh -c …" and other helpers are programs; an option is no address.
    is_program = takes_address(key) and ("::" in value or value.startswith("-"))
    has_name = section[2] is not None
    return not is_program and _holds(_HARMLESS, section[1], key, has_name=has_name)


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")


RUNS_ITSELF = say("Other programs run this automatically.")
NAMES_SELF_RUNNING = say("It names files that other programs run automatically.")

_FILES = frozenset(
    (
        # shells and what looks after their environment
        *(".envrc", ".mise.toml", "mise.toml", ".bashrc", ".bash_profile", ".bash_login"),
        *(".profile", ".zshrc", ".zshenv", ".zprofile", ".zlogin"),
        # editors and debuggers
        *(".vimrc", ".exrc", ".nvimrc", ".nvim.lua", ".lvimrc", ".dir-locals.el"),
        *(".gdbinit", ".lldbinit", ".devcontainer.json"),
        # git, and what hangs on its hooks
        *(".gitconfig", ".pre-commit-config.yaml", ".pre-commit-config.yml", ".overcommit.yml"),
        *("lefthook.yml", ".lefthook.yml", "lefthook.yaml", ".lefthook.yaml", "lefthook.toml"),
        # assistants and their tool servers
        ".mcp.json",
    )
)
_ENDINGS = (".code-workspace",)
_FOLDERS = frozenset(
    (
        *(".vscode", ".idea", ".fleet", ".zed", ".devcontainer"),
        *(".husky", ".githooks"),
        *(".claude", ".cursor", ".codex", ".gemini"),
    )
)
_BETWEEN = re.compile(r"[\s'\"`;&|<>()=,{}\\]+")
_QUOTES = re.compile(r"['\"\\]")
_MAX_OPTION_CHARS = 20  # Before a value that follows in the same word


def runs_itself(path: str) -> bool:
    """Whether some widespread program runs what is at the path, or does what it says there, without
    being told to."""
    *folders, name = path.casefold().strip("/").split("/")
    return name in _FILES or name.endswith(_ENDINGS) or not _FOLDERS.isdisjoint([*folders, name])


def names_self_running(command: str) -> bool:
    """Whether a command line has the path of such a file in it. It may write one without."""
    # A shell makes one word of what is quoted in parts.
    words = {*_BETWEEN.split(command), *_BETWEEN.split(_QUOTES.sub("", command))}
    for word in words:
        last = min(_MAX_OPTION_CHARS, len(word)) if word.startswith("-") else 1
        if any(runs_itself(word[at:]) for at in range(last)):
            return True
    return False
