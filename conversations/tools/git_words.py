"""What a git command line means: whether it only looks, changes, or needs the network.

A subcommand that is in no table is refused: git would look for an alias or a program of
that name. The tables are about what people are asked; what a command can reach is the
sandbox's matter, which holds the workspace read-only for those that look.
"""

from collections.abc import Callable, Sequence

LOOKS = {
    "annotate",
    "blame",
    "cat-file",
    "check-ignore",
    "cherry",
    "count-objects",
    "describe",
    "diff",
    "diff-tree",
    "for-each-ref",
    "grep",
    "log",
    "ls-files",
    "ls-tree",
    "merge-base",
    "name-rev",
    "range-diff",
    "rev-list",
    "rev-parse",
    "shortlog",
    "show",
    "show-branch",
    "show-ref",
    "status",
    "version",
    "whatchanged",
}
CHANGES = {
    "add",
    "am",
    "apply",
    "branch",
    "checkout",
    "cherry-pick",
    "clean",
    "commit",
    "config",
    "format-patch",
    "gc",
    "init",
    "merge",
    "mv",
    "notes",
    "rebase",
    "reflog",
    "remote",
    "reset",
    "restore",
    "revert",
    "rm",
    "stash",
    "switch",
    "tag",
    "update-index",
    "worktree",
}
NEEDS_NETWORK = {"clone", "fetch", "ls-remote", "pull", "push"}
KNOWN = LOOKS | CHANGES | NEEDS_NETWORK

SHOWS_DIFFS = {"diff", "diff-tree", "log", "show", "whatchanged"}
PLAIN_DIFFS = ("--no-ext-diff", "--no-textconv")
"""A repository can name programs that make its diffs."""

_RUNS_OR_WRITES = (
    "exec",
    "ext-diff",
    "filters",
    "open-files-in-pager",
    "output",
    "receive-pack",
    "textconv",
    "upload-pack",
)
"""Long options that run a program or write a file; git takes their beginnings as well."""
_SAFE_BEGINNINGS = {"text", "filter"}
"""Options of their own that one of those begins with."""


def refused_option(subcommand: str, words: Sequence[str]) -> str:
    """The option that such a command must not have, empty if there is none."""
    short = {"grep": "-O", "rebase": "-x"}.get(subcommand)
    for word in _options(words):
        if (short and word.startswith(short)) or _runs_or_writes(word):
            return word
    return ""


def _runs_or_writes(option: str) -> bool:
    name = option.removeprefix("--").partition("=")[0]
    if not option.startswith("--") or not name or name in _SAFE_BEGINNINGS:
        return False
    return any(long.startswith(name) for long in _RUNS_OR_WRITES)


def looks_only(subcommand: str, words: Sequence[str]) -> bool:
    """Whether the command changes nothing."""
    if subcommand in LOOKS:
        return True
    form = _LOOKING_FORMS.get(subcommand)
    return form is not None and form(words)


def needs_network(subcommand: str, words: Sequence[str]) -> bool:
    if subcommand == "remote":
        return bool(set(words) & {"update", "prune"}) or words[:1] == ["show"]
    return subcommand in NEEDS_NETWORK


def _options(words: Sequence[str]) -> list[str]:
    """The options, which end at ``--``."""
    end = list(words).index("--") if "--" in words else len(words)
    return [word for word in words[:end] if word.startswith("-") and word != "-"]


def _is_list(*options: str) -> Callable[[Sequence[str]], bool]:
    """The form that lists: only these options, and names only where it is plain that
    they are looked for and not made."""

    def form(words: Sequence[str]) -> bool:
        names = [word.partition("=")[0] for word in words if word.startswith("-")]
        asks = any(name in _ASK for name in names)
        plain = [word for word in words if not word.startswith("-")]
        return all(name in options for name in names) and (asks or not plain)

    return form


def _begins_with(*firsts: str) -> Callable[[Sequence[str]], bool]:
    return lambda words: bool(words) and words[0] in firsts


_CONFIG_READS = {"--get", "--get-all", "--get-regexp", "--list", "-l", "get", "list"}
_ASK = ("-l", "--list", "--points-at", "--contains", "--no-contains", "--merged", "--no-merged")
_LISTS = (*_ASK, "-n", "--sort", "--format", "--column", "--no-column", "--color", "-i")
_BRANCHES = ("-a", "--all", "-r", "--remotes", "-v", "-vv", "--show-current", "--no-color")

_LOOKING_FORMS: dict[str, Callable[[Sequence[str]], bool]] = {
    "branch": _is_list(*_LISTS, *_BRANCHES),
    "config": _begins_with(*_CONFIG_READS),
    "notes": lambda words: not words or words[0] in ("list", "show"),
    "reflog": lambda words: not words or words[0] == "show",
    "remote": lambda words: list(words) in ([], ["-v"], ["--verbose"]) or words[0] == "get-url",
    "stash": _begins_with("list", "show"),
    "tag": _is_list(*_LISTS),
    "worktree": _begins_with("list"),
}
