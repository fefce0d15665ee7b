"""Files that other programs run automatically.

Editors, shells, assistants and git's hook managers run such files when somebody opens or enters a
folder, or commits in it. No command is typed for this, so a change of such a file is easily
overlooked. Files that only run on request (a Makefile, the scripts of ``package.json``, tests) do
not count.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from conversations.domain.messages import say

# The files that git executes or obeys in a folder, and the harmless parts of them

CONFIGS = ("config", "config.worktree")
HOOKS = "hooks"
COMMON = "commondir"
# Paths in a git folder: configuration, programs, the filters of files, the file that says where all
# of this is read from instead, and two old forms of configuration
PARTS = (*CONFIGS, HOOKS, "info/attributes", COMMON, "remotes", "branches")

_TELLING = {"head", "objects", "refs", *(part.partition("/")[0] for part in PARTS)}

# The next steps of ``git rebase --continue`` and similar commands; a step may be any program.
STEPS = ("rebase-merge/git-rebase-todo", "rebase-merge/git-rebase-todo.backup", "sequencer/todo")

# These files name the merge strategy. Git runs the program ``git-merge-NAME``, and ``../x`` is
# accepted as a name.
STRATEGIES = ("rebase-merge/strategy", "sequencer/opts")

# The suffix of a disarmed part. Git knows no name with this suffix.
DISARMED = ".disabled"

# Limit for files that are read to find their harmless lines; larger files are renamed
MAX_CONFIG_BYTES = 256 * 1024

_IGNORED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def is_git_name(name: str) -> bool:
    """Return whether a name stands for ``.git`` on any file system.

    Case is ignored, as are characters that macOS ignores. Windows' short name counts, too."""
    plain = _IGNORED.sub("", name).casefold().rstrip(". ")
    return plain in (".git", "git~1")


def is_git_folder(names: Iterable[str]) -> bool:
    """Return whether git takes a folder that holds these names for a repository."""
    names_present = {name.casefold() for name in names}
    return "head" in names_present and (
        {"objects", "refs"} <= names_present or "commondir" in names_present
    )


def completes_git_folder(names: Iterable[str], name: str) -> bool:
    """Return whether git would obey the entry ``name`` of a folder that holds ``names``.

    This is so if the folder is a repository, or if ``name`` makes it one."""
    return name.casefold() in _TELLING and is_git_folder([*names, name])


def is_hook(name: str) -> bool:
    """Return whether an entry of a folder of hooks may be run; samples are not."""
    return not name.endswith((".sample", DISARMED))


# Keys of a configuration that name no program, file or place. ``branch.*`` are the keys of sections
# with a name. ``!`` marks keys that git itself writes and that people do not set by ``git config``.
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


def is_settable(section: str, key: str, *, has_name: bool) -> bool:
    """Return whether ``git config`` may set the key, which must be harmless."""
    return _holds(_SETTABLE, section, key, has_name=has_name)


def takes_address(key: str) -> bool:
    """Return whether git takes a value that is not the name of a remote for an address."""
    return key.lower() in _ADDRESSES


def _holds(keys: Mapping[str, frozenset[str]], section: str, key: str, *, has_name: bool) -> bool:
    section = section.lower()
    if section == "advice":
        return not has_name
    return key.lower() in keys.get(f"{section}.*" if has_name else section, ())


def clean_config(
    data: bytes, *, known: bytes = b"", may_work_in: Callable[[str], bool] = lambda _: False
) -> bytes:
    """Return the configuration with all lines commented out that are not known to be harmless.

    A line stays if it is harmless, or if ``known`` has it in the same section. ``may_work_in``
    decides about the path in ``core.worktree``. Git's own grammar has escapes, quotes and continued
    lines. A line that uses them is kept only if ``known`` has the whole line."""
    known_lines = {(header, entry) for header, entry in _logical_lines(known)}
    lines: list[bytes] = []
    is_in_known_place = True
    for header, entry in _logical_lines(data):
        is_known = (header, entry) in known_lines
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
    """Return the steps of a rebase with those commented out that run a program.

    Lines of ``known`` stay."""
    known_lines = set(known.split(b"\n"))
    return b"\n".join(
        b"# disabled: " + line if _STEP.match(line) and line not in known_lines else line
        for line in data.split(b"\n")
    )


def names_own_strategy(data: bytes) -> bool:
    """Return whether a strategy file names one of git's own strategies, or none."""
    if _STRATEGY.fullmatch(data):
        return True
    lines = data.lower().split(b"\n")
    values = [match[1] for line in lines for match in _STRATEGY_OPTION.finditer(line)]
    is_configuration = all(b"=" in line or line.strip()[:1] in (b"", b"[") for line in lines)
    return is_configuration and all(_STRATEGY.fullmatch(value or b"-") for value in values)


def paths_named_by(data: bytes) -> tuple[list[str], list[str]]:
    """Return the paths of hook folders and of included configurations, as they are written."""
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
    """Yield the lines, each with its header; a line that continues after a backslash is joined."""
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
    """Return whether this setting is harmless even if an untrusted person has written it."""
    section, entry = _HEADER.fullmatch(_text(header)), _ENTRY.fullmatch(_text(line))
    if section is None or entry is None:
        return False
    key, value = entry[1], (entry[2] or "").strip()
    if (section[1].lower(), key.lower()) == ("core", "worktree"):
        return may_work_in(value)
    # Helpers such as "ext::sh -c …" are programs, and an option is not an address.
    is_program = takes_address(key) and ("::" in value or value.startswith("-"))
    has_name = section[2] is not None
    return not is_program and _holds(_HARMLESS, section[1], key, has_name=has_name)


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")


RUNS_ITSELF = say("Other programs run this file automatically.")
NAMES_SELF_RUNNING = say("The command names files that other programs run automatically.")

_FILES = frozenset(
    (
        # shells and managers of their environment
        *(".envrc", ".mise.toml", "mise.toml", ".bashrc", ".bash_profile", ".bash_login"),
        *(".profile", ".zshrc", ".zshenv", ".zprofile", ".zlogin"),
        # editors and debuggers
        *(".vimrc", ".exrc", ".nvimrc", ".nvim.lua", ".lvimrc", ".dir-locals.el"),
        *(".gdbinit", ".lldbinit", ".devcontainer.json"),
        # git, and managers of its hooks
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
_MAX_OPTION_CHARS = 20  # Before a value in the same word


def runs_itself(path: str) -> bool:
    """Return whether a common program automatically runs or obeys the file at the path."""
    *folders, name = path.casefold().strip("/").split("/")
    return name in _FILES or name.endswith(_ENDINGS) or not _FOLDERS.isdisjoint([*folders, name])


def names_self_running(command: str) -> bool:
    """Return whether a command line contains the path of such a file.

    A command can also write such a file without naming it."""
    # A shell joins a word of which only parts are quoted.
    words = {*_BETWEEN.split(command), *_BETWEEN.split(_QUOTES.sub("", command))}
    for word in words:
        last = min(_MAX_OPTION_CHARS, len(word)) if word.startswith("-") else 1
        if any(runs_itself(word[start:]) for start in range(last)):
            return True
    return False
