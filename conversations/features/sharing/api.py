"""API operations of links by which anybody may read a part of a session."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest
from ninja import Field, Router, Schema, Status
from pydantic import StrictBool, StrictInt

from conversations.access import access_context_of, get_session_for
from conversations.accounts.tokens import READ, WRITE
from conversations.api.auth import needs
from conversations.api.fields import MAX_NUMBER, Page
from conversations.archive.rights import WRITE as TO_WRITE
from conversations.models import Session

from . import service
from .models import ShareLink
from .views import address_of_link

router = Router(tags=["Share links"])


class ShareLinkIn(Schema):
    """A new link to a range of turns.

    If ``to_turn`` is null, the range ends with the session's last turn. If ``days`` is null, the
    link works for as many days as the server allows. ``with_tools`` includes thinking, tool calls
    and their output.
    """

    from_turn: StrictInt = Field(1, ge=1, le=MAX_NUMBER)
    to_turn: StrictInt | None = Field(None, ge=1, le=MAX_NUMBER)
    days: StrictInt | None = Field(None, ge=1, le=MAX_NUMBER)
    with_tools: StrictBool = False


class ShareLinkOut(Schema):
    """A link that can be opened. Anybody who has the ``url`` can read the turns."""

    uuid: UUID
    url: str
    from_turn: int
    to_turn: int
    with_tools: bool
    created_by: str
    created_at: datetime
    expires_at: datetime
    opened_count: int
    last_opened_at: datetime | None


LINKS = "/sessions/{uuid:uuid}/share-links"


@router.get(LINKS, auth=needs(READ), response=Page[ShareLinkOut], url_name="share_links")
def list_share_links(request: HttpRequest, uuid: UUID) -> dict[str, Any]:
    """List all links to a session that can be opened now, if you may write in the session."""
    links = service.open_links(_shareable(request, uuid))
    return {"items": [_as_link(request, link) for link in links]}


@router.post(LINKS, auth=needs(WRITE), response={201: ShareLinkOut}, url_name="share_links")
def make_share_link(request: HttpRequest, uuid: UUID, new: ShareLinkIn) -> Status[dict[str, Any]]:
    """Create a link to a range of turns.

    Until the link expires or is revoked, anybody who has it can read the turns without an account.
    Later turns are not part of it.
    """
    session = _shareable(request, uuid)
    link = service.create_share_link(
        session,
        from_turn=new.from_turn,
        to_turn=session.turn_count if new.to_turn is None else new.to_turn,
        days=settings.LOOM.share_days if new.days is None else new.days,
        with_tools=new.with_tools,
        origin=access_context_of(request).origin,
    )
    return Status(201, _as_link(request, link))


@router.delete(
    LINKS + "/{uuid:link}", auth=needs(WRITE), response={204: None}, url_name="share_link"
)
def revoke_share_link(request: HttpRequest, uuid: UUID, link: UUID) -> Status[None]:
    """Revoke a link. A link that is revoked already does not change."""
    session, _ = get_session_for(request, uuid, to=TO_WRITE)
    service.revoke_share_link(session, link, origin=access_context_of(request).origin)
    return Status(204, None)


def _shareable(request: HttpRequest, uuid: UUID) -> Session:
    session, _ = get_session_for(request, uuid, to=TO_WRITE)
    service.require_sharing()
    return session


def _as_link(request: HttpRequest, link: ShareLink) -> dict[str, Any]:
    same = (
        "uuid", "from_turn", "to_turn", "with_tools", "created_at", "expires_at", "opened_count",
        "last_opened_at",
    )  # fmt: skip
    return {name: getattr(link, name) for name in same} | {
        "url": address_of_link(request, link),
        "created_by": link.created_by.get_username(),
    }
