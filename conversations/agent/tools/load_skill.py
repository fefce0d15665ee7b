"""``load_skill``: return the instructions of one of the workspace's skills.

The loaded skill is stored with the session, so the window can show it even when the turn of the
call is far below the floor.
"""

import asyncio
from functools import partial
from typing import Annotated

from django.conf import settings
from pydantic import Field

from conversations.agent.files.skills import LOAD_SKILL, Skill, find_skills
from conversations.agent.files.text_files import read_file
from conversations.archive.context import append_loaded_skill

from .tool import ExactText, Requirement, ToolArguments, ToolContext, ToolResult, declare_tool

MAX_LISTED_NAMES = 200

NAMED = "be the name of a skill, as the system prompt lists them."


class LoadSkill(ToolArguments):
    name: Annotated[ExactText, Requirement(NAMED), Field(description="The skill's name.")]


async def run(context: ToolContext, arguments: LoadSkill) -> ToolResult:
    skills = await asyncio.to_thread(find_skills, context.root)
    name = arguments.name.strip()
    if not name:
        return _refused(skills, f"'name' must {NAMED}")
    # Find the skill by its name or by the name of its folder, because people confuse the two.
    lower_name = name.lower()
    by_folder = {skill.path.split("/")[-2].lower(): skill for skill in reversed(skills)}
    by_name = {skill.name.lower(): skill for skill in skills}
    skill = (by_folder | by_name).get(lower_name)
    if skill is None:
        return _refused(skills, f"There is no skill named {name[:100]!r}.")
    max_bytes = settings.LOOM.max_skill_bytes
    file = await asyncio.to_thread(partial(read_file, context.root, skill.path, limit=max_bytes))
    if file is None:
        return ToolResult(ok=False, output=f"{skill.path} cannot be read as text.")
    content = file.text
    if file.is_cut:
        content += (
            f"\n[{skill.path} is cut here: the first {max_bytes} of {file.size} bytes are shown.]"
        )
    loaded = await context.write(
        append_loaded_skill,
        context.session_pk,
        name=skill.name,
        path=skill.path,
        content=content,
        turn=context.call_turn,
    )
    if loaded is None:
        return ToolResult(
            ok=True, output=f"The skill {skill.name} is already loaded and has not changed."
        )
    folder = skill.path.rpartition("/")[0]
    return ToolResult(
        ok=True,
        output=f"The skill {skill.name}, from {skill.path}. Paths in it are relative to {folder}/."
        f" It stays with this conversation.\n\n{content}",
    )


def _refused(skills: list[Skill], reason: str) -> ToolResult:
    names = [skill.name for skill in skills if skill.is_offered]
    if not names:
        return ToolResult(
            ok=False,
            output=f"{reason} The workspace has no skills: no .claude/skills/*/SKILL.md"
            " and no skills/*/SKILL.md.",
        )
    more = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
    return ToolResult(
        ok=False, output=f"{reason} There are: {', '.join(names[:MAX_LISTED_NAMES])}{more}."
    )


TOOL = declare_tool(
    name=LOAD_SKILL,
    description=(
        "Load one of the workspace's skills, which the system prompt lists: instructions for a"
        " particular kind of work. Load the skill that matches the task before you begin. What"
        " is loaded stays with the conversation; loading it again is only useful if its file"
        " has changed."
    ),
    arguments=LoadSkill,
    run=run,
)
