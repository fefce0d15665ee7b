"""The index of the workspace's skills, for the system prompt."""

from collections.abc import Sequence
from pathlib import Path

from django.conf import settings

from conversations.domain.text import one_line
from conversations.folder.paths import shown
from conversations.folder.skills import FOLDERS, MAX_FOLDERS, Skill, count_unread, find_skills

HEADING = (
    "Skills of this workspace: instructions for particular kinds of work. When a task"
    " matches one of them, load it with `load_skill` before you begin."
)

MAX_PROBLEMS = 5


def describe_skills(root: Path) -> str:
    """The index for the system prompt: one line for each skill; the same bytes as
    long as the folder is the same. Empty when there are none.

    Names come before descriptions: while the index is within its limit every skill
    has its description, after that only its name.
    """
    loom = settings.LOOM
    skills = find_skills(root)
    offered = [skill for skill in skills if skill.is_offered]
    listed = offered[: loom.max_skills]
    problems = [f"({problem})" for problem in describe_problems(root, skills)]
    if not listed:
        return "\n".join(problems)
    lines = [HEADING]
    left = loom.skill_index_chars
    for skill in listed:
        line = _line(skill, limit=left)
        left -= len(line)
        lines.append(line)
    if len(listed) < len(offered):
        lines.append(f"({len(offered) - len(listed)} more; `load_skill` names them all.)")
    return "\n".join([*lines, *problems])


def describe_problems(root: Path, skills: Sequence[Skill] | None = None) -> list[str]:
    """A sentence for each of what could not be used of the skills' files, at most
    MAX_PROBLEMS and two more. For the model and for people."""
    skills = find_skills(root) if skills is None else skills
    lines = [f"{shown(skill.path)}: {skill.problem}." for skill in skills if skill.problem]
    if len(lines) > MAX_PROBLEMS:
        lines[MAX_PROBLEMS:] = [f"{len(lines) - MAX_PROBLEMS} more skills have such problems."]
    unread = count_unread(root)
    if unread:
        lines.append(
            f"{unread} more entries of {' and '.join(FOLDERS)} are not looked at: the limit is"
            f" {MAX_FOLDERS} each."
        )
    return lines


def _line(skill: Skill, *, limit: int) -> str:
    name = f"- {skill.name}"
    room = limit - len(name) - 2
    if not skill.description or room < 20:
        return name
    return f"{name}: {one_line(skill.description, limit=room)}"
