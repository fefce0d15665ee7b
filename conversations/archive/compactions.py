"""Compaction: a summary stands for turns in the window. Nothing is removed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCompaction:
    """A summary that stands for all active turns up to ``to_turn``."""

    pk: int
    to_turn: int
    summary: str


def read_active_compaction(session_pk: int) -> StoredCompaction | None:
    """The newest summary that is in force: neither undone nor rewound."""
    return None


def read_compaction(pk: int) -> StoredCompaction:
    """One summary, whether it is in force or not. Raises NotFound."""
    raise NotImplementedError
