"""What was loaded of the workspace's skills, kept with the session."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSkill:
    """``turn`` is the turn that holds the tool's result."""

    pk: int
    name: str
    content: str
    turn: int


def read_loaded_skills(session_pk: int) -> list[LoadedSkill]:
    """The skills of the session on its active path, in the order of loading."""
    return []
