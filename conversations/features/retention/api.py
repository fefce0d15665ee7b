"""API operations of purges and holds. They show no part of the transcript."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpRequest
from django.utils import timezone
from ninja import Query, Router, Schema, Status
from pydantic import StringConstraints

from conversations.access import access_context_of, require_hold_permission
from conversations.accounts.tokens import DELETE, MANAGE, READ
from conversations.api.auth import caller_of, needs
from conversations.api.conversations import router as conversations
from conversations.api.fields import Page, Paging, ShortText, Text, make_page, page_request_of
from conversations.archive.purge import plan_purge
from conversations.domain.keyset import parse_number
from conversations.models import PurgeOrder, Session

from . import service
from .models import Hold

router = Router(tags=["Retention"])

Reason = Annotated[Text, StringConstraints(min_length=1, max_length=service.MAX_REASON_CHARS)]


class DeletedOut(Schema):
    """The result of deleting a conversation.

    Until ``purge_at``, the purge can be cancelled and the session can be read. ``receipt`` is set
    once the session was purged, and proves what it contained.
    """

    success: bool
    message: str
    purge_at: datetime | None = None
    receipt: UUID | None = None


class ReasonIn(Schema):
    """The ``reason``, which stays on record."""

    reason: Reason


class PurgeOut(Schema):
    """A preview of a purge, and the order if there is one.

    ``counts`` has the number of rows of each table that a purge would remove now. The other fields
    belong to the order, and are null if there is none. ``by_policy`` says that the workspace's
    policy gave the order.
    """

    counts: dict[str, int]
    due_at: datetime | None
    ordered_at: datetime | None
    ordered_by: str | None
    reason: str | None
    by_policy: bool | None


class HoldIn(ReasonIn):
    """A new hold. ``what`` is the uuid of a session or the slug of a workspace."""

    what: Annotated[Text, StringConstraints(min_length=1, max_length=120)]


class HoldOut(Schema):
    """A hold, which prevents every purge of a session, or of all sessions of a workspace.

    A hold is in force until it is released. ``session`` is null for the hold of a workspace.
    """

    id: int
    session: UUID | None
    workspace: str
    reason: str
    actor: str | None
    created_at: datetime
    released_at: datetime | None


PURGE_REASON = "Deleted through the API."


# This is registered on the core's router, because the core has other operations of this path, and
# Django calls only the first view that matches a path.
@conversations.delete(
    "/conversations/{uuid:uuid}", auth=needs(DELETE), response=DeletedOut, url_name="conversation"
)
def delete_conversation(
    request: HttpRequest, uuid: UUID, reason: ShortText = PURGE_REASON
) -> dict[str, Any]:
    """Order the purge of a session.

    After the installation's grace period, the session and all its contents are removed, and a
    receipt remains. If a purge is ordered already, that order does not change. If the order is due,
    the session is purged at once.
    """
    _, order = _order(request, uuid, reason)
    if order.due_at > timezone.now():
        moment = f"{order.due_at:%Y-%m-%d %H:%M} UTC"
        message = f"It will be purged on {moment}; until then the purge can be cancelled."
        return {"success": True, "message": message, "purge_at": order.due_at}
    origin = access_context_of(request).origin
    receipt = service.execute_order(order, origin=origin, now=timezone.now())
    message = f"It is purged: {receipt.turns} turns and everything that belongs to them."
    return {"success": True, "message": message, "receipt": receipt.uuid}


PURGE = "/sessions/{uuid:uuid}/purge"


@router.get(PURGE, auth=needs(READ), response=PurgeOut, url_name="session_purge")
def get_purge(request: HttpRequest, uuid: UUID) -> dict[str, Any]:
    """Return what a purge of this session would remove, and the order if there is one.

    This requires the permission to purge the session.
    """
    session = service.get_purgeable(request, caller_of(request).user, uuid)
    return _as_purge(session, service.find_order(session))


@router.put(PURGE, auth=needs(DELETE), response=PurgeOut, url_name="session_purge")
def order_purge(request: HttpRequest, uuid: UUID, wanted: ReasonIn) -> dict[str, Any]:
    """Order the purge of a session after the installation's grace period.

    The session is archived until then. If a purge is ordered already, that order does not change.
    """
    return _as_purge(*_order(request, uuid, wanted.reason))


@router.delete(PURGE, auth=needs(DELETE), response={204: None}, url_name="session_purge")
def call_purge_off(request: HttpRequest, uuid: UUID) -> Status[None]:
    """Cancel the order to purge a session, and undo the archiving that it caused."""
    service.call_off_for(request, caller_of(request).user, uuid)
    return Status(204, None)


@router.get("/holds", auth=needs(MANAGE), response=Page[HoldOut], url_name="holds")
def list_holds(request: HttpRequest, paging: Query[Paging]) -> dict[str, Any]:
    """List the holds in force, the latest first.

    Only administrators and reviewers may use the operations of holds.
    """
    require_hold_permission(request)
    walk, holds = page_request_of(paging), service.holds_in_force()
    if walk.place:
        pk = parse_number(walk.place)
        holds = holds.filter(pk__gt=pk).order_by("pk") if walk.is_back else holds.filter(pk__lt=pk)
    rows = list(holds[: walk.limit + 1])
    return make_page(walk, rows, as_item=_as_hold, place_of=lambda hold: str(hold.pk))


@router.post("/holds", auth=needs(MANAGE), response={201: HoldOut}, url_name="holds")
def place_hold(request: HttpRequest, wanted: HoldIn) -> Status[dict[str, Any]]:
    """Keep a session, or all sessions of a workspace, from being purged."""
    context = access_context_of(request)
    require_hold_permission(context)
    target = service.find_for_hold(wanted.what)
    hold = service.place_hold(target, origin=context.origin, reason=wanted.reason)
    return Status(201, _as_hold(hold))


@router.post(
    "/holds/{int:hold}/release", auth=needs(MANAGE), response=HoldOut, url_name="hold_release"
)
def release_hold(request: HttpRequest, hold: int) -> dict[str, Any]:
    """End a hold."""
    context = access_context_of(request)
    require_hold_permission(context)
    return _as_hold(service.release_hold(hold, origin=context.origin))


def _order(request: HttpRequest, uuid: UUID, reason: str) -> tuple[Session, PurgeOrder]:
    session = service.get_purgeable(request, caller_of(request).user, uuid)
    order = service.find_order(session) or service.order_purge(
        session, origin=access_context_of(request).origin, reason=reason, now=timezone.now()
    )
    return session, order


def _as_purge(session: Session, order: PurgeOrder | None) -> dict[str, Any]:
    names = ("due_at", "ordered_at", "reason", "by_policy")
    return {
        "counts": plan_purge(session).counts,
        "ordered_by": order.ordered_by.get_username() if order and order.ordered_by else None,
        **{name: getattr(order, name, None) for name in names},
    }


def _as_hold(hold: Hold) -> dict[str, Any]:
    workspace = hold.session.workspace if hold.session else hold.workspace
    assert workspace is not None  # a hold has one of them
    return {
        "id": hold.pk,
        "session": hold.session.uuid if hold.session else None,
        "workspace": workspace.slug,
        "reason": hold.reason,
        "actor": hold.actor.get_username() if hold.actor else None,
        "created_at": hold.created_at,
        "released_at": hold.released_at,
    }
