"""The run that looks after what has had its time: by the clock, as often as one likes.

It takes note of expired sessions, orders purges where a workspace's policy asks for
them, carries out those that are due, and removes contents that nothing names any more.
What cannot be done now is said, and tried again by the next run.
"""

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import DatabaseError

from conversations.agent.undo.listing import listed_digests
from conversations.api.stored_responses import forget_answers
from conversations.archive.audit import AuditOrigin
from conversations.archive.blobs import remove_untouched
from conversations.archive.expiry import list_due, take_note
from conversations.archive.purge import (
    PurgeRequest,
    forget_contents,
    named_elsewhere,
    plan_purge,
    purge,
    waiting_contents,
)
from conversations.domain.errors import LoomError, NotFound
from conversations.feature import features
from conversations.models import PurgeOrder, Receipt, Session

from .cold_storage import drop_copy, keep_copy
from .holds import holds_on
from .orders import due_orders, idle_sessions, order_purge
from .receipts import receipts_of

# Removing the contents that purged sessions named.


SETTLED = timedelta(hours=1)
"""Longer than anybody counts on a blob without touching it (``listing.TOUCHED_NS``)."""


@dataclass(slots=True, kw_only=True)
class Removed:
    """Contents that went, that something else names, and that wait for a later look."""

    removed: int = 0
    shared: int = 0
    waiting: int = 0


def remove_contents(now: datetime) -> Removed:
    """Remove what can go by now."""
    found, last = Removed(), ""
    while some := waiting_contents(after=last):
        last = max(some)
        _remove(some, found, since=(now - SETTLED).timestamp())
    return found


def _remove(noted: dict[str, datetime], found: Removed, *, since: float) -> None:
    named = named_elsewhere(noted) | {digest.hex() for digest in listed_digests()}
    over = named.intersection(noted)
    found.shared += len(over)
    for digest in noted:
        if digest in named:
            continue
        if remove_untouched(digest, since=since):
            found.removed += 1
            over.add(digest)
        else:
            found.waiting += 1
    forget_contents({digest: noted[digest] for digest in over})


logger = logging.getLogger(__name__)

NAME = "expire_sessions"
"""What the audit log calls the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionItem:
    """A session, and what is to be said about it."""

    session: str
    workspace: str
    facts: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Report:
    """What was done; of a dry run, what would have been. ``held`` are sessions whose
    time is over and that are on hold; ``failed`` those with which something went wrong."""

    at: str
    dry_run: bool
    expired: list[RetentionItem] = field(default_factory=list)
    ordered: list[RetentionItem] = field(default_factory=list)
    purged: list[RetentionItem] = field(default_factory=list)
    held: list[RetentionItem] = field(default_factory=list)
    failed: list[RetentionItem] = field(default_factory=list)
    contents: Removed = field(default_factory=Removed)

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        lists = ("expired", "ordered", "purged", "held", "failed")
        flat = {
            name: [
                {"session": item.session, "workspace": item.workspace, **item.facts}
                for item in getattr(self, name)
            ]
            for name in lists
        }
        return {
            "at": self.at,
            "dry_run": self.dry_run,
            **flat,
            "contents": asdict(self.contents),
        }

    @property
    def counts(self) -> dict[str, int]:
        lists = ("expired", "ordered", "purged", "held", "failed")
        return {name: len(getattr(self, name)) for name in lists}


def grace() -> timedelta:
    """How long an order to purge can be called off."""
    return timedelta(days=settings.LOOM.purge_grace_days)


def run_retention(*, now: datetime, dry_run: bool = False) -> Report:
    """Do what is due by ``now``. Safe to repeat, and to run twice at a time."""
    report = Report(at=now.isoformat(timespec="seconds"), dry_run=dry_run)
    _expire(report, now)
    _order(report, now)
    _purge(report, due_orders(now), now)
    if not dry_run:
        report.contents = remove_contents(now)
        forget_answers(now)
        for feature in features():
            feature.forget(now)
        if any(report.counts.values()):
            logger.info("retention_run", extra={"fields": report.counts})
    return report


def _expire(report: Report, now: datetime) -> None:
    for due in list_due(now):
        if report.dry_run or take_note(due.session, now=now):
            facts = {"expires_at": due.expires_at.isoformat(timespec="seconds"), "key": due.key}
            item = RetentionItem(session=str(due.session), workspace=due.workspace, facts=facts)
            report.expired.append(item)


def _order(report: Report, now: datetime) -> None:
    for session in idle_sessions(now):
        reason = f"Idle for {session.workspace.retention_days} days."
        if _is_held(report, session):
            continue
        due_at = (now + grace()).isoformat(timespec="seconds")
        try:
            if not report.dry_run:
                _order_by_policy(session, reason, now)
        except (LoomError, DatabaseError) as error:
            _note_failure(report, session, error)
            continue
        report.ordered.append(_item(session, due_at=due_at, reason=reason))
        if report.dry_run and not grace():
            report.purged.append(_planned(session, more_rows=1))  # the order


def _order_by_policy(session: Session, reason: str, now: datetime) -> PurgeOrder:
    return order_purge(
        session,
        origin=AuditOrigin(name=NAME, place=NAME),
        reason=reason,
        now=now,
        grace=grace(),
        by_policy=True,
        idle_since=session.last_active_at,
    )


def _purge(report: Report, orders: Iterable[PurgeOrder], now: datetime) -> None:
    for order in orders:
        session = order.session
        if _is_held(report, session):
            continue
        if report.dry_run:
            report.purged.append(_planned(session, keeps_copy=order.keeps_copy))
            continue
        try:
            receipt = carry_out_order(order, origin=_origin(), now=now)
        except NotFound:
            continue  # another host has done it
        except (LoomError, DatabaseError) as error:
            _note_failure(report, session, error)
            continue
        report.purged.append(_purged(receipt))


def carry_out_order(order: PurgeOrder, *, origin: AuditOrigin, now: datetime) -> Receipt:
    """Purge the session of an order that is due. Raises as :func:`execute`."""
    return execute(
        order.session,
        order=_decided(order),
        origin=origin,
        now=now,
        to_cold_storage=order.keeps_copy,
    )


def execute(
    session: Session,
    *,
    order: PurgeRequest,
    origin: AuditOrigin,
    now: datetime,
    to_cold_storage: bool = False,
) -> Receipt:
    """Purge a session, after a copy was put into cold storage where its workspace asks
    for that. Raises as :func:`archive.purge.purge` and :func:`keep_copy`."""
    session.workspace.refresh_from_db(fields=["uses_cold_storage"])  # as of now
    wants_copy = to_cold_storage or session.workspace.uses_cold_storage
    cold = keep_copy(session) if wants_copy else None
    try:
        return purge(session, order=order, origin=origin, now=now, cold=cold)
    except Exception:
        # A connection may break when the database has done it already.
        if cold and not receipts_of(session.uuid).filter(cold_name=cold.name).exists():
            drop_copy(cold)
        raise


def _decided(order: PurgeOrder) -> PurgeRequest:
    return PurgeRequest(
        pk=order.pk,
        reason=order.reason,
        by=order.ordered_by,
        by_name="" if order.ordered_by else NAME,
        by_policy=order.by_policy,
    )


def _origin() -> AuditOrigin:
    return AuditOrigin(name=NAME, place=NAME)


def _is_held(report: Report, session: Session) -> bool:
    hold = holds_on(session).first()
    if hold is None:
        return False
    known = {item.session for item in report.held}
    if str(session.uuid) not in known:
        report.held.append(_item(session, reason=hold.reason))
    return True


def _note_failure(report: Report, session: Session, error: Exception) -> None:
    reason = error.message if isinstance(error, LoomError) else f"The database failed: {error}"
    report.failed.append(_item(session, reason=reason))
    fields = {"session": str(session.uuid), "reason": reason}
    logger.warning("retention_failed", extra={"fields": fields})


def _planned(session: Session, *, keeps_copy: bool = False, more_rows: int = 0) -> RetentionItem:
    plan = plan_purge(session)
    cold = keeps_copy or session.workspace.uses_cold_storage
    return _item(session, rows=plan.row_count + more_rows, contents=len(plan.contents), cold=cold)


def _purged(receipt: Receipt) -> RetentionItem:
    facts = {
        "receipt": str(receipt.uuid),
        "turns": receipt.turns,
        "cold": receipt.cold_name,
        "reason": receipt.reason,
    }
    return RetentionItem(session=str(receipt.session), workspace=receipt.workspace, facts=facts)


def _item(session: Session, **facts: Any) -> RetentionItem:
    return RetentionItem(session=str(session.uuid), workspace=session.workspace.slug, facts=facts)
