"""Skills of a workspace: folders with a ``SKILL.md``, in the public Agent Skills format.

The file begins with YAML front matter, of which ``name`` and ``description`` are used here. The
rest are instructions that the model gets when it loads the skill. Files written by hand often do
not follow the format exactly. Without usable front matter the folder's name and the text's first
line are used instead. A line ``description: use when: …``, which is not valid YAML, is read as it
is meant.

Anybody may have written the files, so the cost of reading them is bounded by the limits below.
"""

import os
import re
from dataclasses import dataclass
from functools import lru_cache, reduce
from pathlib import Path

import yaml

from conversations.domain.messages import say
from conversations.domain.text import one_line

from .paths import is_within
from .text_files import FileText, read_file

KEYS = ("name", "description", "disable-model-invocation")

MAX_YAML_TOKENS = 400
MAX_YAML_LEVELS = 16  # Lists and mappings; for each token the parser checks all that are open

_PLAIN_LINE = re.compile(rf"^({'|'.join(KEYS)})[ \t]*:[ \t]*+(?![&*])(.*)$", re.M)


class YamlLimitExceeded(yaml.YAMLError):
    """YAML that exceeds a limit; the text says which one."""


class BoundedLoader(yaml.BaseLoader):
    """A loader of strings, lists and mappings, like ``BaseLoader``, with limits."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.tokens_left = MAX_YAML_TOKENS

    def fetch_more_tokens(self) -> None:
        self.tokens_left -= 1
        if self.tokens_left < 0:
            raise YamlLimitExceeded(say("it has more than %(limit)s parts", limit=MAX_YAML_TOKENS))
        if self.flow_level + len(self.indents) > MAX_YAML_LEVELS:
            raise YamlLimitExceeded(
                say("it is nested deeper than %(limit)s", limit=MAX_YAML_LEVELS)
            )
        super().fetch_more_tokens()

    def fetch_alias(self) -> None:
        raise YamlLimitExceeded(say("it has an alias (*)"))

    def fetch_anchor(self) -> None:
        raise YamlLimitExceeded(say("it has an anchor (&)"))


def read_front_matter(source: str) -> tuple[dict[str, str], str]:
    """Return the values of KEYS that are strings, and a clause about values that cannot be used.

    The clause is empty if there is nothing to report. Never raises."""
    problem = ""
    try:
        value = BoundedLoader(source).get_single_data()
    except YamlLimitExceeded as error:
        reason = error.args[0]
        value = None
        problem = say("its front matter is read line by line because %(reason)s", reason=reason)
    except (yaml.YAMLError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        lines = {key: words.strip("\"' ") for key, words in _PLAIN_LINE.findall(source)}
        return lines, problem
    no_texts = [key for key in KEYS if not isinstance(value.get(key, ""), str)]
    if no_texts:
        keys = reduce(
            lambda first, second: say("%(one)s and %(other)s", one=first, other=second), no_texts
        )
        problem = say("%(keys)s of its front matter must be text", keys=keys)
    return {key: value[key] for key in KEYS if isinstance(value.get(key), str)}, problem


# Folders with skills. If two skills have the same name, the one in the earlier folder is used.
FOLDERS = (".claude/skills", "skills")

LOAD_SKILL = "load_skill"  # The name of the tool
FILE_NAMES = ("SKILL.md", "skill.md", "Skill.md")

HEAD_BYTES = 8192  # The front matter has to end within these
MAX_NAME_CHARS, MAX_DESCRIPTION_CHARS = 64, 1024  # Limits of the format
MAX_FOLDERS = 250  # Entries of each of the two folders that are read, in alphabetical order

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)(?:\n)?^(?:---|\.\.\.)[ \t]*$\n?", re.S | re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill.

    ``path`` is the file's, relative to the workspace's folder. If ``is_offered`` is False, only
    people may use the skill (``disable-model-invocation``). ``problem`` is a clause that says which
    part of the front matter cannot be used."""

    name: str
    description: str
    path: str
    is_offered: bool = True
    problem: str = ""


def find_skills(root: Path) -> list[Skill]:
    """Return the workspace's skills, sorted by name. See also ``count_unread``."""
    real_root = os.path.realpath(root)
    skills: dict[str, Skill] = {}
    for folder in FOLDERS:
        for name in sorted(_entries(real_root, folder))[:MAX_FOLDERS]:
            paths = (f"{folder}/{name}/{spelling}" for spelling in FILE_NAMES)
            path = next((p for p in paths if os.path.lexists(os.path.join(real_root, p))), "")
            head = read_file(root, path, limit=HEAD_BYTES) if path else None
            if head is not None:
                skill = _describe(head.text, path)
                skills.setdefault(skill.name, skill)
    return sorted(skills.values(), key=lambda skill: skill.name)


def count_unread(root: Path) -> int:
    """Return the number of entries beyond the limit, which are not read."""
    real_root = os.path.realpath(root)
    return sum(max(0, len(_entries(real_root, folder)) - MAX_FOLDERS) for folder in FOLDERS)


def _entries(real_root: str, folder: str) -> list[str]:
    """Return an empty list if the folder is missing or a link leads out of the workspace."""
    try:
        real = os.path.realpath(os.path.join(real_root, folder), strict=True)
        return os.listdir(real) if is_within(real, real_root) else []
    except (OSError, ValueError):
        return []


@lru_cache(maxsize=2 * MAX_FOLDERS * len(FOLDERS))
def _describe(text: str, path: str) -> Skill:
    texts: dict[str, str] = {}
    problem = ""
    body = text
    match = _FRONT_MATTER.match(text)
    if match is not None:
        texts, problem = read_front_matter(match[1])
        body = text[match.end() :]
    name = one_line(texts.get("name", ""), limit=MAX_NAME_CHARS)
    description = one_line(texts.get("description", ""), limit=MAX_DESCRIPTION_CHARS)
    if not description:
        lines = (line.lstrip("# ").strip() for line in body.splitlines())
        description = one_line(next(filter(None, lines), ""), limit=MAX_DESCRIPTION_CHARS)
    return Skill(
        name=name or one_line(path.split("/")[-2], limit=MAX_NAME_CHARS),
        description=description,
        path=path,
        is_offered=texts.get("disable-model-invocation", "").lower() != "true",
        problem=problem,
    )


# A project's instructions for agents in its root, each with the spellings that are tried. Listing
# the folder for every message could take too long.
NAMES = (
    ("AGENTS.md", "agents.md", "Agents.md", "AGENTS.MD"),
    ("CLAUDE.md", "claude.md", "Claude.md", "CLAUDE.MD"),
)


def read_instruction_files(root: Path, *, limit: int) -> list[tuple[str, FileText]]:
    """Return the instruction files that have a text, with their names.

    At most ``limit`` bytes of each file are read. A file is left out if it is a link to another
    one, a copy of it, or only refers to it (``@AGENTS.md``)."""
    files: list[tuple[str, FileText]] = []
    for spellings in NAMES:
        for name in spellings:
            file = read_file(root, name, limit=limit)
            if file is None:
                continue
            text = file.text.strip()
            repeats = any(
                other.identity == file.identity
                or other.text.strip() == text
                or text.removeprefix("@").removeprefix("./") == other_name
                for other_name, other in files
            )
            if text and not repeats:
                files.append((name, file))
            break
    return files
