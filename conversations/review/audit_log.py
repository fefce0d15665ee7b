"""Looking things up in the audit log: pages of it, and all of it for an export.

What a page costs does not depend on how long the log is. One criterion chooses the
index that is walked along; the others are applied to a limited number of entries.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db.models import QuerySet

from conversations.archive.audit import BATCH_ROWS, AuditEvent, AuditOrigin, record
from conversations.domain.audit import ACTS, AUDIT_ACTIONS, AUDIT_EXPORT, READINGS
from conversations.domain.text import csv_line, dump_json
from conversations.models import AuditEntry

MAX_SCANNED_ENTRIES = 2000  # By a page, when not all of them need fit

READ_ANY, ACT_ANY = "readings", "decisions"  # In place of an action: any of that kind

# What can be asked for → the actions that this means.
ACTIONS = {READ_ANY: frozenset(READINGS), ACT_ANY: frozenset(ACTS)} | {
    action: frozenset({action}) for action in AUDIT_ACTIONS
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLogFilter:
    """Which entries. An empty field wants all; ``action`` is a key of ACTIONS, ``after``
    belongs to the time that is wanted, ``before`` does not."""

    person: User | None = None
    action: str = ""
    session: UUID | None = None
    workspace: str = ""
    after: datetime | None = None
    before: datetime | None = None


@dataclass(frozen=True, slots=True)
class AuditLogPage:
    """``cursor`` is the number before which the next page begins; None: there is none.
    Fewer entries than were asked for can come with a cursor, even none: nothing more
    was among the entries ``looked_through``."""

    entries: list[AuditEntry]
    cursor: int | None
    looked_through: int


def read_log_page(wanted: AuditLogFilter, *, before: int | None = None, limit: int) -> AuditLogPage:
    """The latest entries first, from those numbered below ``before``."""
    rows, others = _walked(wanted)
    if before is not None:
        rows = rows.filter(number__lt=before)
    looked_at = MAX_SCANNED_ENTRIES if others else limit + 1
    walked = list(rows.order_by("-number").values("number", *others)[:looked_at])
    found = [row["number"] for row in walked if all(row[k] in others[k] for k in others)]
    cursor = None
    if len(found) > limit:
        cursor = found[limit - 1]
    elif len(walked) == looked_at:
        cursor = walked[-1]["number"]
    entries = AuditEntry.objects.filter(number__in=found[:limit]).select_related("actor")
    return AuditLogPage(list(entries.order_by("-number")), cursor, len(walked))


def walk_log(wanted: AuditLogFilter) -> Iterator[AuditEntry]:
    """All entries that there are now, the oldest first, in constant memory."""
    rows, others = _walked(wanted)
    newest = AuditEntry.objects.order_by("-number").values_list("number", flat=True).first()
    last, rows = 0, rows.filter(number__lte=newest or 0).order_by("number")
    while batch := list(rows.filter(number__gt=last)[:BATCH_ROWS]):
        yield from (e for e in batch if all(getattr(e, k) in others[k] for k in others))
        last = batch[-1].number


def _walked(wanted: AuditLogFilter) -> tuple[QuerySet[AuditEntry], dict[str, Collection[Any]]]:
    """The entries of the narrowest criterion, and what others they have to fit: columns with the
    values that they may have."""
    others: dict[str, Collection[Any]] = {}
    if wanted.session:
        others["session"] = [wanted.session]
    if wanted.person:
        others["actor_id"] = [wanted.person.pk]
    if wanted.workspace:
        others["workspace"] = [wanted.workspace]
    if wanted.action:
        others["action"] = ACTIONS[wanted.action]
    # Entries are in the order of time as of numbers, so days are ranges of these.
    rows = AuditEntry.objects.all()
    if wanted.after:
        first = _first_since(wanted.after)
        rows = rows.filter(number__gte=first) if first else rows.none()
    if wanted.before and (end := _first_since(wanted.before)):
        rows = rows.filter(number__lt=end)
    for name, values in others.items():
        if len(values) == 1:  # a whole kind of actions is no range of an index
            del others[name]
            return rows.filter(**{name: next(iter(values))}), others
    return rows, others


def _first_since(moment: datetime) -> int | None:
    later = AuditEntry.objects.filter(at__gte=moment).order_by("at", "number")
    return later.values_list("number", flat=True).first()


COLUMNS = (
    *("number", "at", "action", "actor", "actor_name", "session", "workspace"),
    *("place", "address", "agent", "reason", "metadata", "digest"),
)

# As a file: JSON lines with all of it, or CSV for a spreadsheet.
FORMATS = {"jsonl": "application/jsonl; charset=utf-8", "csv": "text/csv; charset=utf-8"}


def export_log(wanted: AuditLogFilter, *, format: str, origin: AuditOrigin) -> Iterator[str]:
    """The lines of the file, the oldest entry first. That it was exported, by whom and
    what of it, is the last entry in it, entered before the first line is given."""
    asked = {
        "person": wanted.person.get_username() if wanted.person else "",
        "action": wanted.action,
        "after": wanted.after.isoformat() if wanted.after else "",
        "before": wanted.before.isoformat() if wanted.before else "",
    }
    metadata = {"format": format} | {name: value for name, value in asked.items() if value}
    session, workspace = wanted.session, wanted.workspace
    note = AuditEvent(action=AUDIT_EXPORT, session=session, workspace=workspace, metadata=metadata)
    record(origin, note)

    def lines() -> Iterator[str]:
        if format == "csv":
            yield csv_line(COLUMNS)
        for entry in walk_log(wanted):
            facts = {name: getattr(entry, name) for name in COLUMNS} | {
                "at": entry.at.isoformat(),
                "actor": entry.actor_id,
                "session": str(entry.session) if entry.session else None,
            }
            if format == "csv":
                yield csv_line(facts[name] for name in COLUMNS)
            else:
                yield dump_json(facts | {"metadata": json.loads(entry.metadata)}) + "\n"

    return lines()
