"""Bringing a session back: an order is called off, a purged one comes from its copy."""

from datetime import datetime
from pathlib import Path
from uuid import UUID

from django.contrib.auth.models import User
from django.db import transaction

from conversations.archive.audit import AuditOrigin
from conversations.archive.sessions import get_session
from conversations.archive.verify import verify_session
from conversations.domain.errors import Conflict, NotFound
from conversations.features.interchange.import_sessions import ImportCounts, import_file
from conversations.features.interchange.import_targets import ImportTarget
from conversations.models import Receipt, Session

from .cold_storage import open_copy
from .orders import call_off_purge
from .receipts import receipts_of, record_restored


def restore_session(
    uuid: UUID, *, origin: AuditOrigin, now: datetime, default_owner: User, root: Path
) -> Receipt | None:
    """Bring a session back as it was, and in use: from cold storage where it is purged,
    by calling the purge off where it is only ordered (None then). ``default_owner`` and
    ``root`` are for a person or workspace that is gone (see
    ``features.interchange.import_targets``).

    Raises NotFound where nothing is known of it, or no copy was kept; Conflict where it
    is there and no purge is ordered, or the copy does not give what was purged.
    """
    try:
        known = get_session(uuid)
    except NotFound:
        return _from_copy(uuid, origin, now, ImportTarget(default_owner=default_owner, root=root))
    call_off_purge(known, origin=origin, now=now)
    return None


def _from_copy(uuid: UUID, origin: AuditOrigin, now: datetime, target: ImportTarget) -> Receipt:
    receipt = receipts_of(uuid).exclude(cold_name="").first()
    if receipt is None:
        raise NotFound(
            "No copy of this session was kept."
            if receipts_of(uuid).exists()
            else "There is no session and no receipt of this uuid."
        )
    with transaction.atomic(), open_copy(receipt.cold_name, digest=receipt.cold_digest) as lines:
        counts, reports = ImportCounts(), list[str]()
        import_file(
            lines,
            target=target,
            counts=counts,
            report=lambda line, text: reports.append(f"line {line}: {text}"),
        )
        session = get_session(uuid)
        _refuse_other(session, receipt)
        if not counts.is_clean:
            said = "; ".join(reports[:3])
            raise Conflict(f"Not all of the copy can be kept: {said}.", code="copy_differs")
        record_restored(session, receipt, origin=origin, now=now)
    return receipt


def _refuse_other(session: Session, receipt: Receipt) -> None:
    is_same = (session.turn_digest, session.event_digest) == (
        receipt.turn_digest,
        receipt.event_digest,
    )
    problem = verify_session(session).problem if is_same else "its digests are others"
    if problem:
        raise Conflict(f"The copy does not give what was purged: {problem}.", code="copy_differs")
