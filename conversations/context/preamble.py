"""What stands in front of the history: what was left out, and what stands for it.

It changes only when the floor moves, so it is part of what the provider caches.
"""

from collections.abc import Mapping, Sequence

from conversations.archive.skills import LoadedSkill
from conversations.domain.text import one_line
from conversations.domain.windows import SLIDING_WINDOW

LINES = 8
"""Messages of the person that are named as what went before."""

LINE_CHARS = 90


def make_preamble(
    *,
    strategy: str,
    floor: int,
    left_out: int,
    lines: Mapping[int, str],
    summary: str,
    summary_to: int,
    skills: Sequence[LoadedSkill],
) -> str:
    """The text, empty when nothing is left out. ``lines`` are beginnings of messages
    by turn; ``summary`` stands for the turns up to ``summary_to``."""
    parts = []
    if summary:
        parts.append(
            f"[Summary of turns 1-{summary_to}, written by a model. The turns themselves are in"
            f" the archive, word for word.]\n{summary.strip()}\n[End of the summary.]"
        )
    if left_out:
        parts.append(_notice(strategy, floor, left_out, lines))
    parts += [
        f"[Skill {skill.name!r}, loaded at turn {skill.turn} and still in force.]\n"
        f"{skill.content.strip()}\n[End of the skill.]"
        for skill in skills
    ]
    return "\n\n".join(parts)


def _notice(strategy: str, floor: int, left_out: int, lines: Mapping[int, str]) -> str:
    if strategy == SLIDING_WINDOW:
        return f"[Note: {left_out} older messages truncated to stay within token limit]"
    notice = (
        f"[Archive: the window starts at turn {floor}. {left_out} earlier turns of this session"
        " are not shown; nothing is lost, and conversation_recall looks them up.]"
    )
    quoted = [f"- turn {turn}: {one_line(text, limit=LINE_CHARS)}" for turn, text in lines.items()]
    if not quoted:
        return notice
    return "\n".join((notice, "The person's messages shortly before, for orientation:", *quoted))
