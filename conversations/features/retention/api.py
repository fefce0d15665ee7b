"""Purges and holds, for programs. Nothing of what was said is shown here."""

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
    """``purge_at``: until then the purge can be called off, and the session be read.
    ``receipt`` is there once it was purged, and proves what it held."""

    success: bool
    message: str
    purge_at: datetime | None = None
    receipt: UUID | None = None


class ReasonIn(Schema):
    """``reason`` stays on record."""

    reason: Reason


class PurgeOut(Schema):
    """``counts``: what a purge would take now, rows by table. The rest is the order, null
    where none is given; ``by_policy``: the workspace's policy has given it."""

    counts: dict[str, int]
    due_at: datetime | None
    ordered_at: datetime | None
    ordered_by: str | None
    reason: str | None
    by_policy: bool | None


class HoldIn(ReasonIn):
    """``what``: the uuid of a session, or the slug of a workspace."""

    what: Annotated[Text, StringConstraints(min_length=1, max_length=120)]


class HoldOut(Schema):
    """While it is not released, nothing of its session, or of any session of its
    workspace, is purged."""

    id: int
    session: UUID | None
    workspace: str
    reason: str
    actor: str | None
    created_at: datetime
    released_at: datetime | None


PURGE_REASON = "Deleted through the API."


# The path has other operations in the core, and Django asks the first view of a path only.
@conversations.delete(
    "/conversations/{uuid:uuid}", auth=needs(DELETE), response=DeletedOut, url_name="conversation"
)
def delete_conversation(
    request: HttpRequest, uuid: UUID, reason: ShortText = PURGE_REASON
) -> dict[str, Any]:
    """Have a session purged, if you may: after the installation's grace period everything
    that it held goes, and a receipt remains. Asking again changes nothing."""
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
    """What a purge of this session would take, and whether one is ordered. For those who
    may order it."""
    session = service.get_purgeable(request, caller_of(request).user, uuid)
    return _as_purge(session, service.find_order(session))


@router.put(PURGE, auth=needs(DELETE), response=PurgeOut, url_name="session_purge")
def order_purge(request: HttpRequest, uuid: UUID, wanted: ReasonIn) -> dict[str, Any]:
    """Have it purged after the installation's grace period; until then it is archived.
    Where a purge is ordered already, that order stays as it is."""
    return _as_purge(*_order(request, uuid, wanted.reason))


@router.delete(PURGE, auth=needs(DELETE), response={204: None}, url_name="session_purge")
def call_purge_off(request: HttpRequest, uuid: UUID) -> Status[None]:
    """Cancel deletion: the session is as it was before the order."""
    service.call_off_for(request, caller_of(request).user, uuid)
    return Status(204, None)


@router.get("/holds", auth=needs(MANAGE), response=Page[HoldOut], url_name="holds")
def list_holds(request: HttpRequest, paging: Query[Paging]) -> dict[str, Any]:
    """The holds in force, the latest first. For administrators and reviewers, as all about
    holds."""
    require_hold_permission(request)
    walk, holds = page_request_of(paging), service.holds_in_force()
    if walk.place:
        pk = parse_number(walk.place)
        holds = holds.filter(pk__gt=pk).order_by("pk") if walk.is_back else holds.filter(pk__lt=pk)
    found = list(holds[: walk.limit + 1])
    return make_page(walk, found, as_item=_as_hold, place_of=lambda one: str(one.pk))


@router.post("/holds", auth=needs(MANAGE), response={201: HoldOut}, url_name="holds")
def place_hold(request: HttpRequest, wanted: HoldIn) -> Status[dict[str, Any]]:
    """Keep a session, or all those of a workspace, from being purged."""
    context = access_context_of(request)
    require_hold_permission(context)
    what = service.find_for_hold(wanted.what)
    hold = service.place_hold(what, origin=context.origin, reason=wanted.reason)
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
