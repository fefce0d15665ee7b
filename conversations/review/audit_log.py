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

from conversations.archive.append import walk_by_key
from conversations.archive.audit import AuditEvent, AuditOrigin, record
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


def read_log_page(
    log_filter: AuditLogFilter, *, before: int | None = None, limit: int
) -> AuditLogPage:
    """Return a page of entries with numbers below ``before``, the latest first."""
    rows, other_criteria = _narrow(log_filter)
    if before is not None:
        rows = rows.filter(number__lt=before)
    max_scanned = MAX_SCANNED_ENTRIES if other_criteria else limit + 1
    scanned = list(rows.order_by("-number").values("number", *other_criteria)[:max_scanned])
    numbers = [
        row["number"] for row in scanned if all(row[k] in other_criteria[k] for k in other_criteria)
    ]
    cursor = None
    if len(numbers) > limit:
        cursor = numbers[limit - 1]
    elif len(scanned) == max_scanned:
        cursor = scanned[-1]["number"]
    entries = AuditEntry.objects.filter(number__in=numbers[:limit]).select_related("actor")
    return AuditLogPage(list(entries.order_by("-number")), cursor, len(scanned))


def walk_log(log_filter: AuditLogFilter) -> Iterator[AuditEntry]:
    """Yield the matching entries that exist at the start, the oldest first, in constant memory."""
    rows, other_criteria = _narrow(log_filter)
    newest = AuditEntry.objects.order_by("-number").values_list("number", flat=True).first()
    for entry in walk_by_key(rows.filter(number__lte=newest or 0), key="number"):
        if all(getattr(entry, k) in other_criteria[k] for k in other_criteria):
            yield entry


def _narrow(log_filter: AuditLogFilter) -> tuple[QuerySet[AuditEntry], dict[str, Collection[Any]]]:
    """Return the entries of the narrowest criterion, and the other criteria to check.

    The other criteria map columns to the values that match.
    """
    criteria: dict[str, Collection[Any]] = {}
    if log_filter.session:
        criteria["session"] = [log_filter.session]
    if log_filter.person:
        criteria["actor_id"] = [log_filter.person.pk]
    if log_filter.workspace:
        criteria["workspace"] = [log_filter.workspace]
    if log_filter.action:
        criteria["action"] = ACTIONS[log_filter.action]
    # Entries have the same order by time and by number, so a period is a range of numbers.
    rows = AuditEntry.objects.all()
    if log_filter.after:
        first = _first_since(log_filter.after)
        rows = rows.filter(number__gte=first) if first else rows.none()
    if log_filter.before and (end := _first_since(log_filter.before)):
        rows = rows.filter(number__lt=end)
    for name, values in criteria.items():
        if len(values) == 1:  # several actions are not a single range of an index
            del criteria[name]
            return rows.filter(**{name: next(iter(values))}), criteria
    return rows, criteria


def _first_since(moment: datetime) -> int | None:
    later = AuditEntry.objects.filter(at__gte=moment).order_by("at", "number")
    return later.values_list("number", flat=True).first()


COLUMNS = (
    *("number", "at", "action", "actor", "actor_name", "session", "workspace"),
    *("place", "address", "agent", "reason", "metadata", "digest"),
)

# File formats: JSON lines for programs, or CSV for a spreadsheet.
FORMATS = {"jsonl": "application/jsonl; charset=utf-8", "csv": "text/csv; charset=utf-8"}


def export_log(log_filter: AuditLogFilter, *, format: str, origin: AuditOrigin) -> Iterator[str]:
    """Record the export in the log, and return the lines of the file, the oldest entry first.

    The entry says who exported what. It is recorded before the first line is returned.
    """
    criteria = {
        "person": log_filter.person.get_username() if log_filter.person else "",
        "action": log_filter.action,
        "after": log_filter.after.isoformat() if log_filter.after else "",
        "before": log_filter.before.isoformat() if log_filter.before else "",
    }
    metadata = {"format": format} | {name: value for name, value in criteria.items() if value}
    session, workspace = log_filter.session, log_filter.workspace
    event = AuditEvent(action=AUDIT_EXPORT, session=session, workspace=workspace, metadata=metadata)
    record(origin, event)

    def lines() -> Iterator[str]:
        if format == "csv":
            yield csv_line(COLUMNS)
        for entry in walk_log(log_filter):
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
