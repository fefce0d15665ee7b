"""Reading the audit log: page by page, or as a whole for an export.

The cost of a page does not depend on the length of the log. One criterion chooses the index to
read, and the other criteria are applied to a limited number of its entries.
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

MAX_SCANNED_ENTRIES = 2000  # per page, if entries of the index may not match other criteria

READ_ANY, ACT_ANY = "readings", "decisions"  # values that stand for all actions of a kind

# Value of the filter → the actions that match it.
ACTIONS = {READ_ANY: frozenset(READINGS), ACT_ANY: frozenset(ACTS)} | {
    action: frozenset({action}) for action in AUDIT_ACTIONS
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLogFilter:
    """Criteria for entries. An empty field matches all.

    ``action`` is a key of ACTIONS. The period includes ``after`` and excludes ``before``.
    """

    person: User | None = None
    action: str = ""
    session: UUID | None = None
    workspace: str = ""
    after: datetime | None = None
    before: datetime | None = None


@dataclass(frozen=True, slots=True)
class AuditLogPage:
    """A page of entries that match a filter.

    ``cursor`` is the number before which the next page begins, or None on the last page. A page
    with a cursor can have fewer entries than the limit, even none, if no more entries among the
    ``looked_through`` ones match.
    """

    entries: list[AuditEntry]
    cursor: int | None
    looked_through: int


def read_log_page(wanted: AuditLogFilter, *, before: int | None = None, limit: int) -> AuditLogPage:
    """Return a page of entries with numbers below ``before``, the latest first."""
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
    """Yield the matching entries that exist at the start, the oldest first, in constant memory."""
    rows, others = _walked(wanted)
    newest = AuditEntry.objects.order_by("-number").values_list("number", flat=True).first()
    last, rows = 0, rows.filter(number__lte=newest or 0).order_by("number")
    while batch := list(rows.filter(number__gt=last)[:BATCH_ROWS]):
        yield from (e for e in batch if all(getattr(e, k) in others[k] for k in others))
        last = batch[-1].number


def _walked(wanted: AuditLogFilter) -> tuple[QuerySet[AuditEntry], dict[str, Collection[Any]]]:
    """Return the entries of the narrowest criterion, and the other criteria to check.

    The other criteria map columns to the values that match.
    """
    others: dict[str, Collection[Any]] = {}
    if wanted.session:
        others["session"] = [wanted.session]
    if wanted.person:
        others["actor_id"] = [wanted.person.pk]
    if wanted.workspace:
        others["workspace"] = [wanted.workspace]
    if wanted.action:
        others["action"] = ACTIONS[wanted.action]
    # Entries have the same order by time and by number, so a period is a range of numbers.
    rows = AuditEntry.objects.all()
    if wanted.after:
        first = _first_since(wanted.after)
        rows = rows.filter(number__gte=first) if first else rows.none()
    if wanted.before and (end := _first_since(wanted.before)):
        rows = rows.filter(number__lt=end)
    for name, values in others.items():
        if len(values) == 1:  # several actions are not a single range of an index
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

# File formats: JSON lines for programs, or CSV for a spreadsheet.
FORMATS = {"jsonl": "application/jsonl; charset=utf-8", "csv": "text/csv; charset=utf-8"}


def export_log(wanted: AuditLogFilter, *, format: str, origin: AuditOrigin) -> Iterator[str]:
    """Record the export in the log, and return the lines of the file, the oldest entry first.

    The entry says who exported what. It is recorded before the first line is returned.
    """
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
