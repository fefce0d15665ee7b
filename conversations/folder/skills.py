"""Skills of a workspace: folders with a ``SKILL.md``, in the public Agent Skills format.

The file begins with YAML front matter, of which ``name`` and ``description`` count
here; what follows are instructions that the model gets when it loads the skill. Files
written by hand are often not quite that: without usable front matter the folder's name
and the text's first line stand in, and a line ``description: use when: …``, which is no
YAML, is read as it is meant.

Anybody may have written the files, so what they cost is bounded: see
:mod:`conversations.folder.front_matter`, and the limits below.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from conversations.domain.text import one_line

from .front_matter import FrontMatter, read_front_matter
from .paths import is_within
from .reading import FileText, read_file

FOLDERS = (".claude/skills", "skills")
"""Where skills lie. Of two with the same name the one in the earlier folder counts."""

FILE_NAMES = ("SKILL.md", "skill.md", "Skill.md")

HEAD_BYTES = 8192
"""In which the front matter has to end."""

NAME_CHARS, DESCRIPTION_CHARS = 64, 1024
"""Limits of the format."""

MAX_FOLDERS = 250
"""Entries of each of the two folders that are looked at, in alphabetical order."""

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)(?:\n)?^(?:---|\.\.\.)[ \t]*$\n?", re.S | re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """``path`` is the file's, relative to the workspace's folder. ``is_offered`` False:
    only people may ask for it (``disable-model-invocation``). ``problem``: what of its
    front matter could not be used, as a clause."""

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
    matter, body = _split(text)
    name = one_line(matter.texts.get("name", ""), limit=NAME_CHARS)
    description = one_line(matter.texts.get("description", ""), limit=DESCRIPTION_CHARS)
    return Skill(
        name=name or one_line(path.split("/")[-2], limit=NAME_CHARS),
        description=description or _first_line(body),
        path=path,
        is_offered=matter.texts.get("disable-model-invocation", "").lower() != "true",
        problem=matter.problem,
    )


def _split(text: str) -> tuple[FrontMatter, str]:
    found = _FRONT_MATTER.match(text)
    if found is None:
        return FrontMatter({}), text
    return read_front_matter(found[1]), text[found.end() :]


def _first_line(body: str) -> str:
    lines = (line.lstrip("# ").strip() for line in body.splitlines())
    return one_line(next((line for line in lines if line), ""), limit=DESCRIPTION_CHARS)
