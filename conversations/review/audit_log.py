"""Looking things up in the audit log: pages of it, and all of it for an export.

What a page costs does not depend on how long the log is. One criterion chooses the
index that is walked along; the others are applied to a limited number of entries.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet

from conversations.archive.audit import CHUNK, AuditEvent, AuditOrigin, record
from conversations.domain.audit import ACTS, AUDIT_ACTIONS, AUDIT_EXPORT, READINGS
from conversations.domain.text import csv_line, dump_json
from conversations.models import AuditEntry

LOOKED_THROUGH = 2000  # Entries that a page looks at, when not all of them need fit

READ_ANY, ACT_ANY = "readings", "decisions"  # In place of an action: any of that kind

# What can be asked for → the actions that this means.
ACTIONS = {READ_ANY: frozenset(READINGS), ACT_ANY: frozenset(ACTS)} | {
    action: frozenset({action}) for action in AUDIT_ACTIONS
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which entries. An empty field wants all; ``action`` is a key of ACTIONS, ``after``
    belongs to the time that is wanted, ``before`` does not."""

    person: User | None = None
    action: str = ""
    session: UUID | None = None
    workspace: str = ""
    after: datetime | None = None
    before: datetime | None = None


class AuditEntryFacts(NamedTuple):
    """What decides whether an entry fits."""

    number: int
    actor_id: int | None
    action: str
    workspace: str
    session: UUID | None


@dataclass(frozen=True, slots=True)
class LogPage:
    """``cursor`` is the number before which the next page begins; None: there is none.
    Fewer entries than were asked for can come with a cursor, even none: nothing more
    was among the entries ``looked_through``."""

    entries: list[AuditEntry]
    cursor: int | None
    looked_through: int


def read_log_page(wanted: Wanted, *, before: int | None = None, limit: int) -> LogPage:
    """The latest entries first, from those numbered below ``before``."""
    rows, fits = _walked(wanted)
    if before is not None:
        rows = rows.filter(number__lt=before)
    looked_at = LOOKED_THROUGH if fits else limit + 1
    walked = list(rows.order_by("-number").values_list(*AuditEntryFacts._fields)[:looked_at])
    found = [
        facts.number
        for facts in map(AuditEntryFacts._make, walked)
        if all(fit(facts) for fit in fits)
    ]
    cursor = None
    if len(found) > limit:
        cursor = found[limit - 1]
    elif len(walked) == looked_at:
        cursor = walked[-1][0]
    entries = AuditEntry.objects.filter(number__in=found[:limit]).select_related("actor")
    return LogPage(list(entries.order_by("-number")), cursor, len(walked))


def walk_log(wanted: Wanted) -> Iterator[AuditEntry]:
    """All entries that there are now, the oldest first, in constant memory."""
    rows, fits = _walked(wanted)
    newest = AuditEntry.objects.order_by("-number").values_list("number", flat=True).first()
    last = 0
    while batch := list(
        rows.filter(number__gt=last, number__lte=newest or 0).order_by("number")[:CHUNK]
    ):
        yield from (entry for entry in batch if all(fit(entry) for fit in fits))
        last = batch[-1].number


def _walked(
    wanted: Wanted,
) -> tuple[QuerySet[AuditEntry], list[Callable[[AuditEntryFacts | AuditEntry], bool]]]:
    """The entries of the narrowest criterion, and what else they have to fit."""
    actions = ACTIONS.get(wanted.action, frozenset())
    criteria: list[tuple[str, Any]] = []
    if wanted.session:
        criteria.append(("session", wanted.session))
    if wanted.person:
        criteria.append(("actor_id", wanted.person.pk))
    if wanted.workspace:
        criteria.append(("workspace", wanted.workspace))
    if len(actions) == 1:
        criteria.append(("action", wanted.action))
    rows = AuditEntry.objects.filter(_in_time(wanted), **dict(criteria[:1]))
    fits = [partial(_has, name=name, value=value) for name, value in criteria[1:]]
    return rows, [*fits, *([partial(_is_any, actions=actions)] if len(actions) > 1 else [])]


def _has(entry: AuditEntryFacts | AuditEntry, *, name: str, value: Any) -> bool:
    return bool(getattr(entry, name) == value)


def _is_any(entry: AuditEntryFacts | AuditEntry, *, actions: frozenset[str]) -> bool:
    return entry.action in actions


def _in_time(wanted: Wanted) -> Q:
    """The days as numbers: entries are in the order of time, as they are of numbers."""
    within = Q()
    if wanted.after:
        first = _first_since(wanted.after)
        within &= Q(number__gte=first) if first else Q(pk__in=())
    if wanted.before and (end := _first_since(wanted.before)):
        within &= Q(number__lt=end)
    return within


def _first_since(moment: datetime) -> int | None:
    later = AuditEntry.objects.filter(at__gte=moment).order_by("at", "number")
    return later.values_list("number", flat=True).first()


# The audit log as a file: JSON lines with all of it, or CSV for a spreadsheet.


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


# Format → what writes it.
WRITERS: dict[str, Callable[[Iterator[AuditEntry]], Iterator[str]]] = {
    "jsonl": _json_lines,
    "csv": _csv_lines,
}
