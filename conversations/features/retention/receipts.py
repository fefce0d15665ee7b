"""Receipts of purged sessions: looked up, and compared with the audit log."""

from uuid import UUID

from django.db.models import QuerySet

from conversations.archive.purge import digest_of_receipt
from conversations.domain.audit import PURGED
from conversations.domain.errors import NotFound
from conversations.domain.text import load_json
from conversations.models import AuditEntry, Receipt

PAGE = 200


def get_receipt(uuid: UUID) -> Receipt:
    """Raises NotFound."""
    found = Receipt.objects.filter(uuid=uuid).first()
    if found is None:
        raise NotFound("There is no such receipt.")
    return found


def find_receipts(query: str = "") -> QuerySet[Receipt]:
    """Receipts, the latest first; those of a session's uuid, a workspace or an owner."""
    receipts = Receipt.objects.order_by("-pk")
    if not query:
        return receipts
    try:
        return receipts.filter(session=UUID(query))
    except ValueError:
        of_workspace = receipts.filter(workspace=query)
        return of_workspace if of_workspace.exists() else receipts.filter(owner=query)


def verify_receipts() -> tuple[int, list[str]]:
    """How many receipts there are, and what is wrong with those that are not as they
    were written, or of which the audit log knows nothing, or that it alone has."""
    count, problems, last = 0, list[str](), 0
    while page := list(Receipt.objects.filter(pk__gt=last).order_by("pk")[:PAGE]):
        sessions = [receipt.session for receipt in page]
        entries = AuditEntry.objects.filter(session__in=sessions, action=PURGED).order_by("number")
        entered = dict(map(_entered, entries.values_list("metadata", flat=True)))
        for receipt in page:
            count += 1
            if receipt.digest != digest_of_receipt(receipt):
                problems.append(f"the receipt {receipt.uuid} is not what was written")
            elif entered.get(str(receipt.uuid)) != receipt.digest:
                problems.append(f"the audit log has no entry of the receipt {receipt.uuid}")
        last = page[-1].pk
    purged, last = AuditEntry.objects.filter(action=PURGED).order_by("number"), 0
    while rows := list(purged.filter(number__gt=last).values_list("number", "metadata")[:PAGE]):
        named = {_entered(metadata)[0] for _, metadata in rows}
        there = Receipt.objects.filter(uuid__in=named).values_list("uuid", flat=True)
        missing = sorted(named - {str(uuid) for uuid in there})
        problems += [f"the receipt {uuid} is missing" for uuid in missing]
        last = rows[-1][0]
    return count, problems


def _entered(metadata: str) -> tuple[str, str]:
    """The receipt and its digest, as an entry of the audit log has them."""
    known = load_json(metadata, default={})
    return str(known.get("receipt")), str(known.get("digest"))
