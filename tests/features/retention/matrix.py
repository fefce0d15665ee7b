from typing import Any

from django.utils import timezone

from conversations.accounts.tokens import DELETE, MANAGE
from conversations.archive.audit import AuditOrigin
from conversations.features.retention.models import Hold
from conversations.features.retention.service import place_hold
from conversations.models import Run, Session
from tests.api import rows as api
from tests.web.rows import (
    REFUSED,
    Row,
    administrators,
    keepers,
    managers,
    signed_in,
)

PAGES = {
    "workspace_retention": Row(get=REFUSED, post=managers(302)),
    "session_purge": Row(get=managers(200), post=managers(400)),  # no reason
    "session_purge_call_off": Row(get=REFUSED, post=managers(302) | {"member": 302}),
    "holds": Row(get=keepers(200), post=keepers(400)),  # of nothing
    "hold_release": Row(get=REFUSED, post=keepers(404)),  # there is none
    "receipts": Row(get=administrators(200), post=signed_in(405)),
    "receipt": Row(get=administrators(404), post=signed_in(405)),  # there is none
}

PURGE = "/sessions/{uuid}/purge"


def keepers_get(status: int) -> dict[str, int]:
    return api.for_roles(404, administrator=status, reviewer=status, superuser=status)


OPERATIONS = {
    ("GET", "/holds"): api.Row(gets=keepers_get(200), scope=MANAGE),
    ("POST", "/holds"): api.Row(
        gets=keepers_get(201), scope=MANAGE, body={"what": "garden", "reason": "A dispute"}
    ),
    ("POST", "/holds/{hold}/release"): api.Row(gets=keepers_get(200), scope=MANAGE),
    ("GET", PURGE): api.Row(gets=api.owners(200), reads=False),
    # Before anything is ordered, there is nothing that members may not call off.
    ("DELETE", PURGE): api.Row(gets=api.writers(409), scope=DELETE),
    ("PUT", PURGE): api.Row(gets=api.owners(409), scope=DELETE, body={"reason": "Done"}),  # held
    ("DELETE", "/conversations/{uuid}"): api.Row(gets=api.owners(409), scope=DELETE),
}


def make_page_values(session: Session, _: Any) -> dict[str, Any]:
    return {"receipt": session.uuid}


def make_operation_values(session: Session) -> dict[str, Any]:
    origin = AuditOrigin(user=session.owner)
    return {"hold": place_hold(session, origin=origin, reason="A dispute").pk}


def stock(session: Session, run: Run) -> None:
    now = timezone.now()
    Hold.objects.create(session=session, reason="x", created_at=now, released_at=now)
