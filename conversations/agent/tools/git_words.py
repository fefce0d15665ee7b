"""The meaning of a git command line: whether it only reads, changes, or needs the network.

``git_options`` lists the subcommands that are offered and their allowed options. Everything else is
refused, because git would look for an alias or a program of that name, and an option may name one.
The sandbox limits everything else that a command can reach, and keeps the workspace read-only for
commands that only read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from conversations.agent.files.executed_files import is_settable, takes_address
from conversations.domain.tool_calls import CHANGES

from .git_options import CONFIG_READS, CONFIG_WRITES, FORMS, SUBCOMMANDS, SubcommandRule

# Parsing of a command line against a list of allowed options, by the grammar that git's
# parse-options and GNU's getopt_long share.

_MARKS = "=?~"


class WordNotAllowed(Exception):
    """A word is not allowed. The message is a sentence that names it."""


class ParsedWords:
    """The words of a command line.

    ``options`` are pairs of the name as written and the value or None. ``plain`` are the other
    words.
    """

    def __init__(self) -> None:
        self.options: list[tuple[str, str | None]] = []
        self.plain: list[str] = []
        self.has_dashes = False

    def has(self, *names: str) -> bool:
        return any(name in names for name, _ in self.options)


@cache
def read_list(text: str) -> Mapping[str, str]:
    """Return the allowed options with their marks. The last entry for a name counts."""
    allowed = {}
    for word in text.split():
        positions = [word.find(mark) for mark in _MARKS]
        mark_start = min((start for start in positions if start > 0), default=len(word))
        allowed[word[:mark_start]] = word[mark_start:]
    return allowed


def read_words(words: Sequence[str], allowed: Mapping[str, str]) -> ParsedWords:
    """Parse the words.

    Raise WordNotAllowed for every word that begins with ``-`` and is not an allowed option, even
    behind ``--`` and in the place of a value. The result is therefore safe even if the program has
    another idea of which options take a value.
    """
    parsed = ParsedWords()
    remaining = iter(enumerate(words))
    for position, word in remaining:
        if word == "--":
            parsed.has_dashes = True
            parsed.plain += words[position + 1 :]
            for path in words[position + 1 :]:
                if path.startswith("-") and path != "-":
                    raise WordNotAllowed(
                        f"Write ./{_shorten(path)} for a path that begins with '-'."
                    )
            break
        if word == "-" or not word.startswith("-"):
            parsed.plain.append(word)
            continue
        following = words[position + 1] if position + 1 < len(words) else None
        read = _read_long if word[1] == "-" else _read_bundle
        options = list(read(word, allowed))
        parsed.options.extend((name, value) for name, value, _ in options)
        name, value, mark = options[-1]  # Only the last option of a bundle can have a value
        if value is None and mark[:1] in ("=", "~") and (mark[0] == "=" or _is_value(following)):
            if following is None:
                raise WordNotAllowed(f"The option {name} needs a value.")
            if not _is_value(following):
                joined = f"{name}{'=' if name.startswith('--') else ''}{_shorten(following)}"
                raise WordNotAllowed(f"Write {joined} for a value that begins with '-'.")
            value = following
            parsed.options[-1] = (name, value)
            next(remaining)
        choices = mark[1:].split("|") if mark[1:] else []
        if choices and value is not None and value not in choices:
            one_of = ", ".join(choices)
            raise WordNotAllowed(
                f"The option {name} is only allowed together with one of: {one_of}."
            )
    return parsed


def _read_long(word: str, allowed: Mapping[str, str]) -> Iterator[tuple[str, str | None, str]]:
    name, equals, value = word.partition("=")
    mark = allowed.get(name)
    if mark is None and name.startswith("--no-") and f"--{name[5:]}" in allowed:
        mark = ""
    if mark is None or (equals and not mark):
        raise WordNotAllowed(_explain(name, allowed))
    yield name, value if equals else None, mark


def _read_bundle(word: str, allowed: Mapping[str, str]) -> Iterator[tuple[str, str | None, str]]:
    if word[1:].isdecimal() and word.isascii() and "-#" in allowed:
        yield "-#", word[1:], ""
        return
    for next_position, letter in enumerate(word[1:], start=2):
        mark = allowed.get(f"-{letter}")
        if mark is None:
            raise WordNotAllowed(_explain(f"-{letter}", allowed, within=word))
        value = word[next_position:] if mark and next_position < len(word) else None
        yield f"-{letter}", value, mark
        if value is not None:
            return


def _is_value(word: str | None) -> bool:
    return word is not None and (word == "-" or not word.startswith("-"))


def _explain(name: str, allowed: Mapping[str, str], *, within: str = "") -> str:
    shortened = _shorten(name)
    if within and within != name:
        return f"The option {shortened} (in {_shorten(within)}) is not allowed here."
    full = [option for option in allowed if option.startswith(name)] if len(name) > 2 else []
    if full and name not in allowed:
        return f"The option {shortened} is not allowed: write options in full, as in {full[0]}."
    return f"The option {shortened} is not allowed here."


def _shorten(word: str) -> str:
    return word[:100]


# A repository can name programs that make its diffs.
_PLAIN_DIFFS = ("--no-ext-diff", "--no-textconv")
_SHOWS_DIFFS = {"annotate", "blame", "diff", "diff-tree", "log", "reflog", "show", "whatchanged"}
_SHOWS_STASHES = {"list", "show"}

# For ``ext::…`` git runs ``git-remote-ext``, as in its function ``transport_get``.
_NAMES_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9+.-]*::")
_SCHEME = re.compile(r"([A-Za-z0-9][A-Za-z0-9+.-]*)://")
_SCHEMES = ("file", "git", "http", "https", "ssh")
_REMOTE_NAME = re.compile(r"[\w][\w-]*(?:[./][\w-]+)*|\.")
_KEY = re.compile(r"([A-Za-z0-9-]+)\.(?:(.*)\.)?([A-Za-z][A-Za-z0-9-]*)", re.DOTALL)

_ASKS = ("-l", "--list", "--points-at", "--contains", "--no-contains", "--merged", "--no-merged")
_LISTS = (
    *_ASKS,
    *("-n", "--sort", "--format", "--column", "--no-column", "--color", "--no-color"),
    *("-i", "--ignore-case", "--omit-empty"),
)
_LISTS_BRANCHES = (
    *("-a", "--all", "-r", "--remotes", "-v", "--verbose", "--show-current"),
    *("--abbrev", "--no-abbrev"),
)
_CONFIG_ASKS = ("--get", "--get-all", "--get-regexp", "-l", "--list")
_MAKES_BRANCH = ("-b", "-B", "-c", "-C", "--create", "--force-create", "-t", "--track")


@dataclass(frozen=True, slots=True, kw_only=True)
class GitCall:
    """A parsed git command line.

    ``words`` follow the subcommand as given, and ``runs`` are the arguments with which git is
    started. ``writes_config`` is true if the command has to write ``.git/config`` or to make a
    repository, and the content written is harmless. ``is_kind`` is true if "always" may cover all
    such calls of the subcommand.
    """

    subcommand: str
    words: Sequence[str]
    runs: Sequence[str]
    changes: bool
    needs_network: bool = False
    writes_config: bool = False
    is_kind: bool = True


def read_call(words: Sequence[str]) -> GitCall:
    """Parse the words after ``git``. Raise WordNotAllowed with a sentence for the model."""
    subcommand = words[0]
    arguments = list(words[1:])
    if subcommand not in SUBCOMMANDS:
        available = ", ".join(sorted(SUBCOMMANDS))
        raise WordNotAllowed(f"'git {subcommand[:100]}' is not available. Available: {available}.")
    if subcommand == "config":
        return _read_config(arguments)
    # The verb ("list" of ``stash list``), empty if there is none, and its rule.
    verb = arguments[0] if arguments and f"{subcommand} {arguments[0]}" in FORMS else ""
    form = FORMS.get(f"{subcommand} {verb}" if verb else subcommand)
    if form is None:
        first = arguments[0][:100] if arguments else ""
        verbs = ", ".join(sorted(name for name in FORMS if name.startswith(f"{subcommand} ")))
        raise WordNotAllowed(f"'git {subcommand} {first}' is not available. Available: {verbs}.")
    parsed = read_words(arguments[1:] if verb else arguments, read_list(form.options))
    if parsed.plain and not form.takes_words:
        raise WordNotAllowed(f"'git {subcommand} {parsed.plain[0][:100]}' is not available.")
    if form.has_url:
        values = [value for name, value in parsed.options if name == "--repo" and value]
        for word in [*parsed.plain, *values]:
            scheme = _SCHEME.match(word)
            if _NAMES_HELPER.match(word) or (scheme and scheme[1].lower() not in _SCHEMES):
                raise WordNotAllowed(
                    f"The URL {word[:100]} is not allowed; allowed are {', '.join(_SCHEMES)} "
                    "and paths."
                )
        paths = parsed.plain[1:] if subcommand == "remote" else []
        for word in paths:
            is_absolute = word.startswith(("/", "~")) or word.lower().startswith("file:")
            if is_absolute or ".." in word.split("/"):
                raise WordNotAllowed("A remote cannot be a path outside the workspace.")
    changes = _changes(subcommand, form, parsed)
    writes_config = form.writes_config
    if subcommand == "branch":
        # git writes the upstream of a new branch to the configuration, also when it guesses the
        # branch from the name of a remote branch.
        writes_config = changes
    elif subcommand in ("checkout", "switch"):
        is_name = len(parsed.plain) == 1 and not parsed.has_dashes
        writes_config = parsed.has(*_MAKES_BRANCH) or is_name
    elif subcommand in ("fetch", "pull", "push"):
        writes_config = parsed.has("-u", "--set-upstream")
    return GitCall(
        subcommand=subcommand,
        words=arguments,
        runs=_add_options(subcommand, verb, arguments),
        changes=changes,
        needs_network=form.needs_network,
        writes_config=writes_config,
        # A rebase continues with the steps in a file that commands can write, and these may run
        # programs.
        is_kind=not (subcommand == "rebase" and parsed.has("--continue", "--skip")),
    )


def _add_options(subcommand: str, verb: str, words: Sequence[str]) -> list[str]:
    """Add options that keep a reading command from running programs that the repository names."""
    arguments = list(words[1:] if verb else words)
    if subcommand == "stash" and verb in _SHOWS_STASHES:
        # With any option, `stash show` prints a patch instead of its usual list.
        summary = ["--stat"] if verb == "show" and not any(w[:1] == "-" for w in arguments) else []
        return [subcommand, verb, *_PLAIN_DIFFS, *summary, *arguments]
    if subcommand == "reflog" and verb in ("", "show"):
        return [subcommand, "show", *_PLAIN_DIFFS, *arguments]
    plain = _PLAIN_DIFFS if subcommand in _SHOWS_DIFFS and not verb else ()
    return [subcommand, *([verb] if verb else []), *plain, *arguments]


def _changes(subcommand: str, form: SubcommandRule, parsed: ParsedWords) -> bool:
    if form.effect:
        return form.effect == CHANGES
    lists = _LISTS + (_LISTS_BRANCHES if subcommand == "branch" else ())
    # Only with an option that asks, names are searched. Otherwise they would be created.
    is_list = all(name in lists for name, _ in parsed.options)
    return not (is_list and (parsed.has(*_ASKS) or not parsed.plain))


def _read_config(words: Sequence[str]) -> GitCall:
    """Parse ``config`` with its old options or its newer verbs."""
    verb = words[0] if words and words[0] in ("get", "list", "set", "unset") else ""
    arguments = words[1:] if verb else words
    changes = verb in ("set", "unset")
    if not verb:
        names = [word for word in arguments if not word.startswith("-")]
        sets = any(
            word in ("--add", "--unset", "--unset-all", "--replace-all") for word in arguments
        )
        asks = any(word in _CONFIG_ASKS for word in arguments) or (len(names) == 1 and not sets)
        changes = not asks
    allowed = read_list(CONFIG_WRITES if changes else CONFIG_READS)
    parsed = read_words(arguments, allowed)
    if negated := [name for name, _ in parsed.options if name not in allowed]:
        # A negated option could turn a command that asks into one that sets.
        raise WordNotAllowed(f"The option {negated[0][:100]} is not allowed here.")
    if changes:
        if not parsed.plain:
            raise WordNotAllowed("The name of the setting is missing.")
        takes_away = verb == "unset" or parsed.has("--unset", "--unset-all")
        key, *values = parsed.plain
        # Check that the setting cannot run a program. git ignores the case of all parts but the
        # middle.
        parts = _KEY.fullmatch(key)
        section, middle, name = parts.groups() if parts else ("", "", "")
        if middle == "" or not is_settable(section, name, has_name=middle is not None):
            raise WordNotAllowed(
                f"The setting {key[:100]} cannot be changed here. Only settings that make git "
                "run no program can be changed, such as user.name, pull.rebase or "
                "branch.<name>.merge."
            )
        value = "" if takes_away else " ".join(values[:1])
        if takes_address(name) and value and not _REMOTE_NAME.fullmatch(value):
            raise WordNotAllowed(
                f"{key[:100]} takes the name of a remote; create it with 'remote add'."
            )
    runs = ["config", *words]
    return GitCall(
        subcommand="config", words=words, runs=runs, changes=changes, writes_config=changes
    )
