"""The hash chains over a session's turns and events.

Each digest is SHA-256 over the digest before it and the row's content as compact
JSON, so one changed, removed or swapped row breaks every later one. A chain
starts from the session's uuid: rows cannot be moved between sessions.
"""

import hashlib
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID


def first_digest(session_uuid: UUID, *, chain: str) -> str:
    """The start of a session's chain; ``chain`` is ``turns`` or ``events``."""
    return hashlib.sha256(f"loom:{chain}:{session_uuid}".encode()).hexdigest()


def next_digest(previous: str, fields: tuple[Any, ...]) -> str:
    text = json.dumps([previous, *fields], ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def instant(moment: datetime) -> str:
    """The one spelling of an instant in digests and exports: UTC, microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
