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
    writers,
)

PAGES = {
    "workspace_retention": Row(get=managers(200), post=managers(302)),
    "workspace_purge": Row(get=REFUSED, post=writers(302)),  # shows a message: no session is chosen
    "session_purge": Row(get=managers(200), post=managers(400)),  # no reason is posted
    "session_purge_call_off": Row(get=REFUSED, post=managers(302) | {"member": 302}),
    "holds": Row(get=keepers(200), post=keepers(400)),  # no target is posted
    "hold_release": Row(get=keepers(404), post=keepers(404)),  # no such hold
    "receipts": Row(get=administrators(200), post=signed_in(405)),
    "receipt": Row(get=administrators(404), post=signed_in(405)),  # no such receipt
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
    # There is no order yet, so members get the same status as owners.
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


ORDERED = "3e5a7c91-0b2d-4f46-8a8c-1d3f5b7e9a0c"

BROWSER_PAGES = {
    "retention": "/w/example/retention/",
    "purge": "/s/{story}/purge/",
    "purge-ordered": f"/s/{ORDERED}/purge/",
    "to-be-purged": f"/s/{ORDERED}/",
    "holds": "/holds/",
    "receipts": "/receipts/",
    "receipt": "/receipts/{receipt}/",
}

# A session on hold with an ordered purge, and the receipt of another session.
BROWSER_STOCK = f"""
from datetime import timedelta
from uuid import UUID
from django.contrib.auth.models import User
from django.utils import timezone
from conversations.archive.audit import AuditOrigin
from conversations.archive.purge import PurgeRequest, purge
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import get_workspace
from conversations.features.retention.service import order_purge, place_hold
found, user, now = get_workspace("example"), User.objects.get(pk=1), timezone.now()
origin, reason = AuditOrigin(user=user), "Asked for by the long-named " + "person-" * 20
ordered = create_session(found, owner=user, uuid=UUID("{ORDERED}"))
order_purge(ordered, origin=origin, reason=reason, now=now, grace=timedelta(days=30))
place_hold(ordered, origin=origin, reason=reason)
receipt = purge(create_session(found, owner=user), order=PurgeRequest(reason=reason, by=user),
    origin=origin, now=now)
print(f"receipt={{receipt.uuid}}")
"""
