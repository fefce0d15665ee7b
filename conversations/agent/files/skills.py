"""Skills of a workspace: folders with a ``SKILL.md``, in the public Agent Skills format.

The file begins with YAML front matter, of which ``name`` and ``description`` count here; what
follows are instructions that the model gets when it loads the skill. Files written by hand are
often not quite that: without usable front matter the folder's name and the text's first line stand
in, and a line ``description: use when: …``, which is no YAML, is read as it is meant.

Anybody may have written the files, so what they cost is bounded: see
:mod:`conversations.agent.files.skills`, and the limits below.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml

from conversations.domain.text import one_line

from .paths import is_within
from .text_files import FileText, read_file

# YAML front matter of a file that anybody may have written.


KEYS = ("name", "description", "disable-model-invocation")

MAX_TOKENS = 400
MAX_NESTING = 16  # Of lists and mappings. For each token the parser looks at all that are open.

_PLAIN_LINE = re.compile(rf"^({'|'.join(KEYS)})[ \t]*:[ \t]*+(?![&*])(.*)$", re.M)


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """``texts``: the values of KEYS that are texts. ``problem`` is a clause about what could not be
    used, empty if there is nothing to say."""

    texts: dict[str, str]
    problem: str = ""


class TooMuch(yaml.YAMLError):
    """YAML that is not read here; the text says why."""


class BoundedLoader(yaml.BaseLoader):
    """Makes texts, lists and mappings, as ``BaseLoader`` does, of a bounded head."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.tokens_left = MAX_TOKENS

    def fetch_more_tokens(self) -> None:
        self.tokens_left -= 1
        if self.tokens_left < 0:
            raise TooMuch(f"it has more than {MAX_TOKENS} parts")
        if self.flow_level + len(self.indents) > MAX_NESTING:
            raise TooMuch(f"it is nested deeper than {MAX_NESTING}")
        super().fetch_more_tokens()

    def fetch_alias(self) -> None:
        raise TooMuch("it has an alias (*)")

    def fetch_anchor(self) -> None:
        raise TooMuch("it has an anchor (&)")


def read_front_matter(source: str) -> FrontMatter:
    """Never raises."""
    problem = ""
    try:
        value = BoundedLoader(source).get_single_data()
    except TooMuch as error:
        value, problem = None, f"its front matter is read line by line, since {error}"
    except (yaml.YAMLError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        lines = {key: words.strip("\"' ") for key, words in _PLAIN_LINE.findall(source)}
        return FrontMatter(lines, problem)
    no_texts = [key for key in KEYS if not isinstance(value.get(key, ""), str)]
    if no_texts:
        problem = f"{' and '.join(no_texts)} of its front matter must be text"
    return FrontMatter(
        {key: value[key] for key in KEYS if isinstance(value.get(key), str)}, problem
    )


# Where skills lie. Of two with the same name the one in the earlier folder counts.
FOLDERS = (".claude/skills", "skills")

FILE_NAMES = ("SKILL.md", "skill.md", "Skill.md")

HEAD_BYTES = 8192  # In which the front matter has to end
NAME_CHARS, DESCRIPTION_CHARS = 64, 1024  # Limits of the format
MAX_FOLDERS = 250  # Entries of each of the two folders that are looked at, in alphabetical order

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)(?:\n)?^(?:---|\.\.\.)[ \t]*$\n?", re.S | re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """``path`` is the file's, relative to the workspace's folder. ``is_offered`` False: only people
    may ask for it (``disable-model-invocation``). ``problem``: what of its front matter could not
    be used, as a clause."""

    name: str
    description: str
    path: str
    is_offered: bool = True
    problem: str = ""


def find_skills(root: Path) -> list[Skill]:
    """The workspace's skills by name; empty when there are none. See ``count_unread``."""
    found: dict[str, Skill] = {}
    for path in _skill_paths(root):
        head = read_file(root, path, limit=HEAD_BYTES)
        if head is not None:
            skill = _describe(head.text, path)
            found.setdefault(skill.name, skill)
    return sorted(found.values(), key=lambda skill: skill.name)


def count_unread(root: Path) -> int:
    """Entries of the folders that are too many to be looked at."""
    real_root = os.path.realpath(root)
    return sum(max(0, len(_entries(real_root, folder)) - MAX_FOLDERS) for folder in FOLDERS)


def read_skill(root: Path, skill: Skill, *, limit: int) -> FileText | None:
    """The skill's whole text, at most ``limit`` bytes of it."""
    return read_file(root, skill.path, limit=limit)


def _skill_paths(root: Path) -> Iterator[str]:
    real_root = os.path.realpath(root)
    for folder in FOLDERS:
        for name in sorted(_entries(real_root, folder))[:MAX_FOLDERS]:
            spelling = next((f for f in FILE_NAMES if _exists(real_root, folder, name, f)), None)
            if spelling is not None:
                yield f"{folder}/{name}/{spelling}"


def _entries(real_root: str, folder: str) -> list[str]:
    """Nothing where the folder is missing or a link leads out of the workspace."""
    try:
        real = os.path.realpath(os.path.join(real_root, folder), strict=True)
        return os.listdir(real) if is_within(real, real_root) else []
    except (OSError, ValueError):
        return []


def _exists(*parts: str) -> bool:
    return os.path.lexists(os.path.join(*parts))


@lru_cache(maxsize=2 * MAX_FOLDERS * len(FOLDERS))
def _describe(text: str, path: str) -> Skill:
    found = _FRONT_MATTER.match(text)
    if found is None:
        matter, body = FrontMatter({}), text
    else:
        matter, body = read_front_matter(found[1]), text[found.end() :]
    name = one_line(matter.texts.get("name", ""), limit=NAME_CHARS)
    description = one_line(matter.texts.get("description", ""), limit=DESCRIPTION_CHARS)
    return Skill(
        name=name or one_line(path.split("/")[-2], limit=NAME_CHARS),
        description=description or _first_line(body),
        path=path,
        is_offered=matter.texts.get("disable-model-invocation", "").lower() != "true",
        problem=matter.problem,
    )


def _first_line(body: str) -> str:
    lines = (line.lstrip("# ").strip() for line in body.splitlines())
    return one_line(next((line for line in lines if line), ""), limit=DESCRIPTION_CHARS)


# Instructions for agents that a project keeps in its root: AGENTS.md, CLAUDE.md.


# The files, each with the spellings that are tried: a folder may be too large to be listed for
# every message.
NAMES = (
    ("AGENTS.md", "agents.md", "Agents.md", "AGENTS.MD"),
    ("CLAUDE.md", "claude.md", "Claude.md", "CLAUDE.MD"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionFile:
    name: str
    text: str
    shown_bytes: int
    size: int

    @property
    def is_cut(self) -> bool:
        return self.shown_bytes < self.size


def read_instruction_files(root: Path, *, limit: int) -> list[InstructionFile]:
    """The files that say something, at most ``limit`` bytes of each. One that is a link to another,
    a copy of it or only refers to it (``@AGENTS.md``) is left out."""
    found: list[tuple[str, FileText]] = []
    for spellings in NAMES:
        read = _read_first(root, spellings, limit=limit)
        if read is not None and read[1].text.strip() and not _repeats(read[1], found):
            found.append(read)
    return [
        InstructionFile(
            name=name,
            text=file.text.strip(),
            shown_bytes=min(limit, file.size) if file.is_cut else file.size,
            size=file.size,
        )
        for name, file in found
    ]


def _read_first(
    root: Path, spellings: tuple[str, ...], *, limit: int
) -> tuple[str, FileText] | None:
    for name in spellings:
        file = read_file(root, name, limit=limit)
        if file is not None:
            return name, file
    return None


def _repeats(file: FileText, found: list[tuple[str, FileText]]) -> bool:
    text = file.text.strip()
    return any(
        other.identity == file.identity
        or other.text.strip() == text
        or text.removeprefix("@").removeprefix("./") == name
        for name, other in found
    )
