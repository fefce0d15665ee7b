"""Looking things up in the audit log: pages of it, and all of it for an export.

What a page costs does not depend on how long the log is. One criterion chooses the
index that is walked along; the others are applied to a limited number of entries.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet

from conversations.domain.audit import ACTS, AUDIT_ACTIONS, READINGS
from conversations.models import AuditEntry

from .audit import CHUNK

LOOKED_THROUGH = 2000
"""Entries that a page looks at, when not all of them need fit."""

READ_ANY, ACT_ANY = "readings", "decisions"
"""In place of an action: any of that kind."""

ACTIONS = {READ_ANY: frozenset(READINGS), ACT_ANY: frozenset(ACTS)} | {
    action: frozenset({action}) for action in AUDIT_ACTIONS
}
"""What can be asked for → the actions that this means."""


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
