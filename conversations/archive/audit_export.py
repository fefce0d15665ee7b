"""The audit log as a file: JSON lines with all of it, or CSV for a spreadsheet."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from conversations.domain.audit import AUDIT_EXPORT
from conversations.domain.jsontext import dump_json
from conversations.domain.spreadsheets import csv_line
from conversations.models import AuditEntry

from .audit import AuditEvent, AuditOrigin, record
from .audit_log import Wanted, walk_log

COLUMNS = (
    "number",
    "at",
    "action",
    "actor",
    "actor_name",
    "session",
    "workspace",
    "place",
    "address",
    "agent",
    "reason",
    "metadata",
    "digest",
)


def export_log(wanted: Wanted, *, format: str, origin: AuditOrigin) -> Iterator[str]:
    """The lines of the file, the oldest entry first. That it was exported, by whom and
    what of it, is the last entry in it, entered before the first line is given."""
    asked = {
        "person": wanted.person.get_username() if wanted.person else "",
        "action": wanted.action,
        "after": wanted.after.isoformat() if wanted.after else "",
        "before": wanted.before.isoformat() if wanted.before else "",
    }
    metadata = {"format": format} | {name: value for name, value in asked.items() if value}
    note = AuditEvent(
        action=AUDIT_EXPORT,
        session=wanted.session,
        workspace=wanted.workspace,
        metadata=metadata,
    )
    record(origin, note)
    return WRITERS[format](walk_log(wanted))


def entry_facts(entry: AuditEntry) -> dict[str, Any]:
    """The entry with its digest, which covers everything before it."""
    values = {name: getattr(entry, name) for name in COLUMNS}
    return values | {
        "at": entry.at.isoformat(),
        "actor": entry.actor_id,
        "session": str(entry.session) if entry.session else None,
        "metadata": json.loads(entry.metadata),
    }


def _json_lines(entries: Iterator[AuditEntry]) -> Iterator[str]:
    for entry in entries:
        yield dump_json(entry_facts(entry)) + "\n"


def _csv_lines(entries: Iterator[AuditEntry]) -> Iterator[str]:
    yield csv_line(COLUMNS)
    for entry in entries:
        facts = entry_facts(entry) | {"metadata": entry.metadata}
        yield csv_line(facts[name] for name in COLUMNS)


WRITERS: dict[str, Callable[[Iterator[AuditEntry]], Iterator[str]]] = {
    "jsonl": _json_lines,
    "csv": _csv_lines,
}
"""Format → what writes it."""
