"""Skills of a workspace: folders with instructions that the model can load."""

from pathlib import Path


def describe_skills(root: Path) -> str:
    """The index for the system prompt: one line for each skill; the same bytes as
    long as the folder is the same. Empty when there are none."""
    return ""
