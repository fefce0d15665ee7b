"""Instructions for agents that a project keeps in its root: AGENTS.md, CLAUDE.md."""

from dataclasses import dataclass
from pathlib import Path

from .reading import FileText, read_file

NAMES = (
    ("AGENTS.md", "agents.md", "Agents.md", "AGENTS.MD"),
    ("CLAUDE.md", "claude.md", "Claude.md", "CLAUDE.MD"),
)
"""The files, each with the spellings that are tried: a folder may be too large to be
listed for every message."""


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
    """The files that say something, at most ``limit`` bytes of each. One that is a
    link to another, a copy of it or only refers to it (``@AGENTS.md``) is left out."""
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
