"""API operations of a workspace's webhooks.

Only the responses to creating and rotating a webhook contain its secret.
"""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import NAMESPACE_URL, UUID, uuid5

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from ninja import Field, Query, Router, Schema, Status
from pydantic import StrictBool, StringConstraints

from conversations.access import access_context_of, get_workspace_for
from conversations.accounts.tokens import HOOKS
from conversations.api.auth import caller_of, needs
from conversations.api.fields import Page, Paging, Text, key_header, make_page, page_request_of
from conversations.api.idempotency import idempotent
from conversations.archive.rights import MANAGE
from conversations.models import Workspace
from conversations.web.addresses import site_of

from . import deliveries, service
from .models import PENDING, Delivery, Webhook
from .worker import check_webhook_url

router = Router(tags=["Webhooks"])

Address = Annotated[Text, StringConstraints(pattern=r"^https?://\S+$", max_length=2000)]
Event = Literal[
    "run.completed", "run.failed", "run.stopped", "run.interrupted", "run.waiting_approval"
]
Events = Annotated[list[Event], Field(min_length=1, max_length=20)]
Key = Annotated[
    str | None, key_header("With the same key, the same caller creates only one webhook.")
]


class HookIn(Schema):
    """A new webhook. Messages contain text of the transcript only if ``with_text`` is true."""

    url: Address = Field(examples=["https://hooks.example.org/loom"])
    events: Events
    with_text: StrictBool = False
    active: StrictBool = True


class HookPatch(Schema):
    """Changes of a webhook. Fields that are missing or null keep their value."""

    url: Address | None = None
    events: Events | None = None
    with_text: StrictBool | None = None
    active: StrictBool | None = None


class HookOut(Schema):
    """A webhook.

    No message has arrived since ``failing_since``. The ``state`` is ``turned_off`` if the server
    has turned the webhook off, because it failed for too long or its receiver is gone.
    """

    uuid: UUID
    page: str = Field(description="The address of its page.")
    workspace: str
    url: str
    events: list[str]
    with_text: bool
    active: bool
    state: Literal["on", "failing", "off", "turned_off"]
    failing_since: datetime | None
    created_at: datetime
    created_by: str | None


class HookWithSecret(HookOut):
    """A webhook with the ``secret`` that signs its messages. It is not shown again."""

    secret: str


class DeliveryOut(Schema):
    """A message and the state of its delivery.

    ``uuid`` is the message's ``webhook-id``. ``status`` is the status code of the receiver's last
    response, and ``next_at`` is when the message is tried again.
    """

    uuid: UUID
    event: str
    session: UUID | None
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    status: int | None
    error: str
    created_at: datetime
    tried_at: datetime | None
    next_at: datetime | None


HOOKS_OF = "/workspaces/{slug:slug}/hooks"
HOOK = HOOKS_OF + "/{uuid:hook}"


@router.get(HOOKS_OF, auth=needs(HOOKS), response=Page[HookOut], url_name="hooks")
def list_hooks(request: HttpRequest, slug: str) -> dict[str, Any]:
    """List all webhooks of a workspace. Only its owners may use the operations of webhooks."""
    webhooks = service.list_webhooks(_managed(request, slug))
    return {"items": [_as_hook(webhook) for webhook in webhooks]}


@router.post(HOOKS_OF, auth=needs(HOOKS), response={201: HookWithSecret}, url_name="hooks")
def make_hook(
    request: HttpRequest, response: HttpResponse, slug: str, new: HookIn, key: Key
) -> Status[dict[str, Any]]:
    """Create a webhook. ``Location`` has its address."""
    workspace = _managed(request, slug)
    # The same caller gets the same webhook for the same key.
    name = f"loom:webhook:{workspace.pk}:{caller_of(request).user.pk}:{key}"
    webhook = service.create_webhook(
        workspace,
        url=check_webhook_url(new.url),
        events=new.events,
        with_text=new.with_text,
        is_active=new.active,
        uuid=uuid5(NAMESPACE_URL, name) if key else None,
        site=site_of(request),
        origin=access_context_of(request).origin,
    )
    response["Location"] = reverse("api:hook", args=[slug, webhook.uuid])
    return Status(201, _with_secret(webhook))


@router.get(HOOK, auth=needs(HOOKS), response=HookOut, url_name="hook")
def get_hook(request: HttpRequest, slug: str, hook: UUID) -> dict[str, Any]:
    """Return one webhook and its state."""
    return _as_hook(_find(request, slug, hook))


@router.patch(HOOK, auth=needs(HOOKS), response=HookOut, url_name="hook")
def change_hook(request: HttpRequest, slug: str, hook: UUID, patch: HookPatch) -> dict[str, Any]:
    """Change a webhook. If it is turned on again, its pending messages are sent at once."""
    found = _find(request, slug, hook)
    changes = patch.model_dump(exclude_none=True)
    service.change_webhook(
        found,
        url=check_webhook_url(changes["url"]) if "url" in changes else found.url,
        events=changes.get("events", service.read_events(found)),
        with_text=changes.get("with_text", found.with_text),
        is_active=changes.get("active", found.is_active),
        site=site_of(request),
        origin=access_context_of(request).origin,
    )
    return _as_hook(found)


@router.delete(HOOK, auth=needs(HOOKS), response={204: None}, url_name="hook")
def remove_hook(request: HttpRequest, slug: str, hook: UUID) -> Status[None]:
    """Remove a webhook with its deliveries."""
    service.remove_webhook(_find(request, slug, hook), origin=access_context_of(request).origin)
    return Status(204, None)


@router.post(HOOK + "/rotate", auth=needs(HOOKS), response=HookWithSecret, url_name="hook_rotate")
def rotate_hook(request: HttpRequest, slug: str, hook: UUID) -> dict[str, Any]:
    """Change the secret. For 24 hours, the earlier secrets also sign.

    So it does no harm to repeat the request.
    """
    webhook = _find(request, slug, hook)
    service.rotate_secret(webhook, origin=access_context_of(request).origin)
    return _with_secret(webhook)


@router.post(HOOK + "/test", auth=needs(HOOKS), response={202: DeliveryOut}, url_name="hook_test")
@idempotent(to=MANAGE)
def test_hook(request: HttpRequest, slug: str, hook: UUID) -> Status[dict[str, Any]]:
    """Send a message of the event ``webhook.test``."""
    return Status(202, _as_delivery(deliveries.send_test(_find(request, slug, hook))))


@router.get(
    HOOK + "/deliveries", auth=needs(HOOKS), response=Page[DeliveryOut], url_name="hook_deliveries"
)
def list_hook_deliveries(
    request: HttpRequest, slug: str, hook: UUID, paging: Query[Paging]
) -> dict[str, Any]:
    """List the messages of a webhook, delivered or not, the latest first."""
    walk = page_request_of(paging)
    rows = deliveries.walk_deliveries(
        _find(request, slug, hook), place=walk.number, is_back=walk.is_back, limit=walk.limit + 1
    )
    return make_page(walk, rows, as_item=_as_delivery, place_of=lambda delivery: str(delivery.pk))


@router.post(
    HOOK + "/deliveries/{uuid:delivery}/again",
    auth=needs(HOOKS),
    response={202: DeliveryOut},
    url_name="hook_delivery_again",
)
def deliver_again(
    request: HttpRequest, slug: str, hook: UUID, delivery: UUID
) -> Status[dict[str, Any]]:
    """Send a message again, with the same ``webhook-id``."""
    again = deliveries.deliver_again(_find(request, slug, hook), delivery)
    return Status(202, _as_delivery(again))


def _managed(request: HttpRequest, slug: str) -> Workspace:
    workspace, _ = get_workspace_for(request, slug, to=MANAGE)
    return workspace


def _find(request: HttpRequest, slug: str, uuid: UUID) -> Webhook:
    return service.get_webhook(_managed(request, slug), uuid)


def _as_hook(webhook: Webhook) -> dict[str, Any]:
    slug = webhook.workspace.slug
    names = ("uuid", "url", "with_text", "state", "failing_since", "created_at")
    return {name: getattr(webhook, name) for name in names} | {
        "page": reverse("workspace_webhook", args=[slug, webhook.uuid]),
        "workspace": slug,
        "events": service.read_events(webhook),
        "active": webhook.is_active,
        "created_by": webhook.created_by.get_username() if webhook.created_by else None,
    }


def _with_secret(webhook: Webhook) -> dict[str, Any]:
    return _as_hook(webhook) | {"secret": service.read_secret(webhook)}


def _as_delivery(delivery: Delivery) -> dict[str, Any]:
    names = ("uuid", "event", "state", "attempts", "status", "error", "created_at", "tried_at")
    return {name: getattr(delivery, name) for name in names} | {
        "session": delivery.session.uuid if delivery.session else None,
        "next_at": delivery.next_at if delivery.state == PENDING else None,
    }
