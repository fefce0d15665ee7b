"""Webhooks of a workspace: creating, changing, rotating and removing them.

The secret of a webhook is derived from the installation's secret key and is not stored. So no copy
of the database, no export and no page of the admin reveals it, and it is the same after a restart.
A rotation changes the secret by increasing the webhook's generation.
"""

import base64
from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from uuid import UUID, uuid4

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.crypto import salted_hmac

from conversations.archive.audit import AuditEvent, AuditOrigin, record
from conversations.archive.workspaces import lock_workspace
from conversations.domain.audit import WEBHOOK
from conversations.domain.errors import Conflict, KeyMismatch, Rejected, require_found
from conversations.domain.text import dump_json, load_json
from conversations.models import AuditEntry, Workspace

from .models import EVENTS, PENDING, Delivery, Webhook

SALT = "loom.webhook"

MAX_WEBHOOKS = 20  # webhooks that a workspace may have
MAX_SECRETS = 5  # secrets of a webhook that sign at a time
SECRET_OVERLAP = timedelta(hours=24)  # how long earlier secrets still sign after a rotation

ROTATED = "rotated"  # the audit log's word for a rotation

SECRET_PREFIX = "whsec_"  # noqa: S105 (what secrets begin with)


def create_webhook(
    workspace: Workspace,
    *,
    url: str,
    events: Sequence[str],
    with_text: bool = False,
    is_active: bool = True,
    uuid: UUID | None = None,
    site: str,
    origin: AuditOrigin,
) -> Webhook:
    """Create a webhook, or return the one that already has this ``uuid``.

    ``url`` has to be checked already. Raise Rejected if events are unknown, if the workspace has
    too many webhooks, or if the existing webhook was created with other values.
    """
    chosen = _events_text(events)
    digest = sha256(dump_json([url, chosen, with_text, is_active]).encode()).hexdigest()
    with transaction.atomic():
        # If two requests at once would each create the last webhook that is allowed, the second
        # request waits for this lock and is refused.
        lock_workspace(workspace)
        if uuid and (existing := Webhook.objects.filter(workspace=workspace, uuid=uuid).first()):
            if existing.wish_digest != digest:
                raise KeyMismatch("This key was already used for another webhook.")
            return existing
        if Webhook.objects.filter(workspace=workspace).count() >= MAX_WEBHOOKS:
            raise Rejected(
                "This workspace already has %(limit)s webhooks. Delete one first.",
                code="too_many_webhooks",
                limit=MAX_WEBHOOKS,
            )
        webhook = Webhook.objects.create(
            uuid=uuid or uuid4(),
            workspace=workspace,
            url=url,
            events=chosen,
            with_text=with_text,
            is_active=is_active,
            site=site,
            wish_digest=digest if uuid else None,
            created_by=origin.user,
            created_at=timezone.now(),
        )
        record(origin, _audit_event(webhook, "made"))
    return webhook


def change_webhook(
    webhook: Webhook,
    *,
    url: str,
    events: Sequence[str],
    with_text: bool = False,
    is_active: bool = True,
    site: str,
    origin: AuditOrigin,
) -> None:
    """Change the fields whose new values differ from those that ``webhook`` was read with.

    If the webhook is turned on again, its pending messages are sent at once. Raise Rejected if
    events are unknown, and NotFound if the webhook was removed.
    """
    values = {
        "url": url,
        "events": _events_text(events),
        "with_text": with_text,
        "is_active": is_active,
        "site": site,
    }
    changed = {name: value for name, value in values.items() if getattr(webhook, name) != value}
    if changed.get("is_active"):
        changed |= {"switched_off_at": None, "failing_since": None}
    with transaction.atomic():
        # Only changed fields are saved, so that concurrent changes, such as a rotation, are kept.
        locked = Webhook.objects.select_for_update().filter(pk=webhook.pk).first()
        locked_webhook = require_found(locked, "This webhook does not exist.")
        for name, value in changed.items():
            setattr(locked_webhook, name, value)
        locked_webhook.save(update_fields=changed)
        if changed.get("is_active"):
            waiting = Delivery.objects.filter(webhook=webhook.pk, state=PENDING)
            waiting.update(next_at=timezone.now())
        record(origin, _audit_event(locked_webhook, "changed"))
    webhook.refresh_from_db()


def rotate_secret(webhook: Webhook, *, origin: AuditOrigin) -> None:
    """Change the secret. Raise Conflict if too many secrets of the last day still sign."""
    with transaction.atomic():
        locked_webhook = Webhook.objects.select_for_update().get(pk=webhook.pk)
        now = timezone.now()
        # A webhook that was removed and created again with the same key has the same uuid, so
        # rotations before its creation are not counted.
        since = max(now - SECRET_OVERLAP, locked_webhook.created_at)
        rotations = _count_rotations(locked_webhook, since=since)
        if rotations >= MAX_SECRETS - 1:
            raise Conflict(
                "The secret was already changed %(count)s times today. Try again tomorrow.",
                code="too_many_secrets",
                count=rotations,
            )
        # All secrets of the last day continue to sign, so that rotating twice does not invalidate
        # the secret that the receiver knows.
        locked_webhook.oldest_generation = locked_webhook.generation - rotations
        locked_webhook.generation += 1
        locked_webhook.rotated_at = now
        locked_webhook.save(update_fields=["generation", "oldest_generation", "rotated_at"])
        record(origin, _audit_event(locked_webhook, ROTATED))
    webhook.refresh_from_db(fields=["generation", "oldest_generation", "rotated_at"])


def _count_rotations(webhook: Webhook, *, since: datetime) -> int:
    # Only the audit log has the times of rotations. Each rotation replaces one generation.
    entries = AuditEntry.objects.filter(
        action=WEBHOOK, at__gt=since, metadata__contains=str(webhook.uuid)
    )
    changes = [load_json(text, default={}) for text in entries.values_list("metadata", flat=True)]
    return sum(change.get("what") == ROTATED for change in changes)


def remove_webhook(webhook: Webhook, *, origin: AuditOrigin) -> None:
    """Remove a webhook and its deliveries. The audit log records the removal."""
    with transaction.atomic():
        record(origin, _audit_event(webhook, "removed"))
        Delivery.objects.filter(webhook=webhook.pk).delete()
        Webhook.objects.filter(pk=webhook.pk).delete()


def list_webhooks(workspace: Workspace) -> QuerySet[Webhook]:
    webhooks = Webhook.objects.filter(workspace=workspace).order_by("pk")
    return webhooks.select_related("workspace", "created_by")


def get_webhook(workspace: Workspace, uuid: UUID) -> Webhook:
    """Return a webhook of the workspace. Raise NotFound if it does not exist."""
    webhook = list_webhooks(workspace).filter(uuid=uuid).first()
    return require_found(webhook, "This webhook does not exist.")


def read_events(webhook: Webhook) -> list[str]:
    return [str(event) for event in load_json(webhook.events, default=[])]


def read_secret(webhook: Webhook) -> str:
    """Return the current secret. It is shown only after the webhook is created or rotated."""
    return SECRET_PREFIX + base64.b64encode(_key(webhook, webhook.generation)).decode()


def signing_keys(webhook: Webhook, *, now: datetime) -> list[bytes]:
    """Return the current key and, for a day after a rotation, the keys of the day before it."""
    newest = webhook.generation
    oldest = newest
    if webhook.rotated_at is not None and now < webhook.rotated_at + SECRET_OVERLAP:
        oldest = webhook.oldest_generation
    return [_key(webhook, generation) for generation in range(newest, oldest - 1, -1)]


def _key(webhook: Webhook, generation: int) -> bytes:
    value = f"{webhook.uuid}:{generation}"
    return salted_hmac(SALT, value, algorithm="sha256").digest()


def _events_text(events: Sequence[str]) -> str:
    chosen = [event for event in EVENTS if event in events]
    if not chosen or set(events) - set(EVENTS):
        raise Rejected(
            "Choose at least one of the events %(events)s.",
            code="bad_events",
            events=", ".join(EVENTS),
        )
    return dump_json(chosen)


def _audit_event(webhook: Webhook, what: str) -> AuditEvent:
    # The address is left out, because a part of it may be a secret.
    return AuditEvent(
        action=WEBHOOK,
        workspace=webhook.workspace.slug,
        metadata={
            "what": what,
            "webhook": str(webhook.uuid),
            "host": webhook.host,
            "events": read_events(webhook),
            "with_text": webhook.with_text,
            "is_active": webhook.is_active,
        },
    )
