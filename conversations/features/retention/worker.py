"""The hourly retention run.

It records the expiry of sessions, orders purges that a workspace's policy asks for, executes orders
that are due, and removes contents that are no longer referenced. It may run as often as desired:
sessions that cannot be processed are reported, and the next run tries them again.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, connection
from django.utils import timezone

from conversations.agent.undo.listing import listed_digests
from conversations.archive.audit import AuditOrigin
from conversations.archive.blobs import remove_untouched
from conversations.archive.messages import refuse_busy
from conversations.archive.purge import (
    forget_purged_contents,
    named_by_features,
    named_by_sessions,
    plan_purge,
    waiting_contents,
)
from conversations.archive.sessions import list_due, release_expired_key
from conversations.domain.errors import Conflict, LoomError, NotFound
from conversations.models import Session
from conversations.runtime.ownership import try_lock

from .service import (
    call_off_purge,
    due_orders,
    execute_order,
    grace_period,
    holds_on,
    idle_sessions,
    is_idle,
    order_purge,
)

if TYPE_CHECKING:
    from conversations.runtime.service import Runtime

logger = logging.getLogger(__name__)

# The name of the run in the audit log.
ORIGIN = AuditOrigin(name="expire_sessions", place="expire_sessions")

# Longer than any code relies on a blob without touching it (``listing.TOUCHED_NS``).
UNTOUCHED_FOR = timedelta(hours=1)

MAX_FIRST_DELAY_SECONDS = 60.0  # short, so that a server that is restarted often runs it, too

LOCK = "retention"


@dataclass(slots=True, kw_only=True)
class RemovedContents:
    """Counts of contents that were removed, that other sessions use, and that wait for later."""

    removed: int = 0
    shared: int = 0
    waiting: int = 0


@dataclass(slots=True, kw_only=True)
class RetentionReport:
    """The changes that a run made or, for a dry run, would have made.

    An item has the ``session``, its ``workspace`` and further facts. ``held`` has sessions that
    would be purged but are on hold. ``busy`` has sessions that were idle for too long, but have a
    run that is active or waits, usually for a person. ``failed`` has sessions for which an error
    was raised.
    """

    at: str
    dry_run: bool
    expired: list[dict[str, Any]] = field(default_factory=list)
    ordered: list[dict[str, Any]] = field(default_factory=list)
    purged: list[dict[str, Any]] = field(default_factory=list)
    held: list[dict[str, Any]] = field(default_factory=list)
    busy: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    contents: RemovedContents = field(default_factory=RemovedContents)

    @property
    def counts(self) -> dict[str, int]:
        lists = ("expired", "ordered", "purged", "held", "busy", "failed")
        return {name: len(getattr(self, name)) for name in lists}

    def report_hold(self, session: Session) -> bool:
        """Return whether the session is on hold. If it is, report it once."""
        hold = holds_on(session).first()
        if hold is not None and str(session.uuid) not in {item["session"] for item in self.held}:
            self.held.append(_item(session, reason=hold.reason))
        return hold is not None

    def report_failure(self, session: Session, error: Exception) -> None:
        reason = error.message if isinstance(error, LoomError) else f"The database failed: {error}"
        self.failed.append(_item(session, reason=reason))
        fields = {"session": str(session.uuid), "reason": reason}
        logger.warning("retention_failed", extra={"fields": fields})


def run_retention(*, now: datetime, dry_run: bool = False) -> RetentionReport:
    """Do everything that is due by ``now``. This may be repeated, and run twice at a time."""
    report = RetentionReport(at=now.isoformat(timespec="seconds"), dry_run=dry_run)
    for due in list_due(now):
        if dry_run or release_expired_key(due.uuid, now=now):
            assert due.expires_at is not None
            expires_at = due.expires_at.isoformat(timespec="seconds")
            report.expired.append(_item(due, expires_at=expires_at, key=due.key or ""))
    _order_idle(report, now)
    _purge_due(report, now)
    if not dry_run:
        report.contents = remove_contents(now)
        if any(report.counts.values()):
            logger.info("retention_run", extra={"fields": report.counts})
    return report


def _order_idle(report: RetentionReport, now: datetime) -> None:
    for session in idle_sessions(now):
        if report.report_hold(session):
            continue
        try:
            refuse_busy(session.pk)
        except Conflict as error:
            report.busy.append(_item(session, reason=error.message))
            continue
        reason = f"Idle for {session.workspace.retention_days} days."
        try:
            if not report.dry_run:
                order_purge(
                    session,
                    origin=ORIGIN,
                    reason=reason,
                    now=now,
                    by_policy=True,
                    idle_since=session.last_active_at,
                )
        except (LoomError, DatabaseError) as error:
            report.report_failure(session, error)
            continue
        due_at = (now + grace_period()).isoformat(timespec="seconds")
        report.ordered.append(_item(session, due_at=due_at, reason=reason))
        if report.dry_run and not grace_period():
            report.purged.append(_planned(session, more_rows=1))  # one more for the order


def _purge_due(report: RetentionReport, now: datetime) -> None:
    for order in due_orders(now):
        session = order.session
        if report.report_hold(session):
            continue
        # The policy may have changed since it gave the order.
        is_wanted = not order.by_policy or is_idle(session, now)
        if report.dry_run:
            report.purged += [_planned(session)] if is_wanted else []
            continue
        try:
            if not is_wanted:
                call_off_purge(session, origin=ORIGIN, now=now)
                continue
            receipt = execute_order(order, origin=ORIGIN, now=now)
        except NotFound:
            continue  # another host has purged the session
        except (LoomError, DatabaseError) as error:
            report.report_failure(session, error)
            continue
        facts = {"receipt": str(receipt.uuid), "turns": receipt.turns, "reason": receipt.reason}
        report.purged.append(_item(session, **facts))


def _planned(session: Session, *, more_rows: int = 0) -> dict[str, Any]:
    plan = plan_purge(session)
    return _item(session, rows=plan.row_count + more_rows, contents=len(plan.contents))


def _item(session: Session, **facts: Any) -> dict[str, Any]:
    return {"session": str(session.uuid), "workspace": session.workspace.slug, **facts}


def remove_contents(now: datetime) -> RemovedContents:
    """Remove contents of purged sessions that are no longer used."""
    counts = RemovedContents()
    since = (now - UNTOUCHED_FOR).timestamp()
    last = ""
    while noted := waiting_contents(after=last):
        last = max(noted)
        # These contents are still used for a time. They stay noted, because no later purge would
        # note them again.
        needed = named_by_features(noted) | {digest.hex() for digest in listed_digests()}
        done = named_by_sessions(noted)
        counts.shared += len(done)
        for digest in noted.keys() - done:
            if digest not in needed and remove_untouched(digest, since=since):
                counts.removed += 1
                done.add(digest)
            else:
                counts.waiting += 1
        forget_purged_contents({digest: noted[digest] for digest in done})
    return counts


class RetentionWorker:
    """A worker that executes the retention run at an interval.

    The run has its own thread and database connection, so that answers do not wait for it. Only one
    of the processes that share a data folder executes it at a time.
    """

    def __init__(self, runtime: "Runtime") -> None:
        self._lock = runtime.options.data_dir / "run" / LOCK
        self._interval = 60.0 * runtime.options.expire_minutes

    async def run(self) -> None:
        await asyncio.sleep(min(MAX_FIRST_DELAY_SECONDS, self._interval))
        while True:
            await asyncio.to_thread(self.run_once)
            await asyncio.sleep(self._interval)

    def run_once(self) -> bool:
        """Execute a run. Return False if another process is executing one, or if it failed."""
        with try_lock(self._lock) as is_ours:
            if not is_ours:
                return False
            try:
                run_retention(now=timezone.now())
            except Exception:
                logger.exception("retention_not_run")
                return False
            finally:
                connection.close()
        return True
