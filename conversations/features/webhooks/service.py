"""Webhooks of a workspace: made, changed, rotated, removed.

A secret is derived from the installation's secret key and is stored nowhere: no copy of
the database, no export and no page of the admin can tell it, and it is the same after a
restart. What changes it is another generation.
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

from conversations.api.idempotency import KeyMismatch
from conversations.archive.audit import AuditEvent, AuditOrigin, record
from conversations.archive.workspaces import lock_workspace
from conversations.domain.audit import WEBHOOK
from conversations.domain.errors import Conflict, Rejected, require_found
from conversations.domain.text import dump_json, load_json
from conversations.models import AuditEntry, Workspace

from .models import EVENTS, PENDING, Delivery, Webhook

SALT = "loom.webhook"

MAX_WEBHOOKS = 20  # webhooks that a workspace may have
MAX_SECRETS = 5  # secrets of a webhook that sign at a time
SECRET_OVERLAP = timedelta(hours=24)  # for which earlier secrets still sign after a rotation

ROTATED = "rotated"  # what the audit log says of another secret

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
    """``url`` is one that was checked. One that has this ``uuid`` already is given as it is.
    Raises Rejected for unknown events, where there are too many webhooks, and where that one
    was wanted otherwise when it was made."""
    chosen = _events_text(events)
    digest = sha256(dump_json([url, chosen, with_text, is_active]).encode()).hexdigest()
    with transaction.atomic():
        # Of two at once that would be the last one, the second waits and is refused.
        lock_workspace(workspace)
        if uuid and (found := Webhook.objects.filter(workspace=workspace, uuid=uuid).first()):
            if found.wish_digest not in (None, digest):
                raise KeyMismatch("This key was already used for another webhook.")
            return found
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
    """Change what is given otherwise than ``webhook`` was read. Raises Rejected for unknown
    events, and NotFound. Turned on again, it is told at once of what waits."""
    wish = {
        "url": url,
        "events": _events_text(events),
        "with_text": with_text,
        "is_active": is_active,
        "site": site,
    }
    changed = {name: value for name, value in wish.items() if getattr(webhook, name) != value}
    if changed.get("is_active"):
        changed |= {"switched_off_at": None, "failing_since": None}
    with transaction.atomic():
        # What has happened to it meanwhile, such as another secret, stays.
        locked = Webhook.objects.select_for_update().filter(pk=webhook.pk).first()
        found = require_found(locked, "This webhook does not exist.")
        for name, value in changed.items():
            setattr(found, name, value)
        found.save(update_fields=changed)
        if changed.get("is_active"):
            waiting = Delivery.objects.filter(webhook=webhook.pk, state=PENDING)
            waiting.update(next_at=timezone.now())
        record(origin, _audit_event(found, "changed"))
    webhook.refresh_from_db()


def rotate_secret(webhook: Webhook, *, origin: AuditOrigin) -> None:
    """Another secret. Raises Conflict where too many of the last day still sign."""
    with transaction.atomic():
        found = Webhook.objects.select_for_update().get(pk=webhook.pk)
        now = timezone.now()
        # One that was removed and made anew with the same key has the same uuid.
        since = max(now - SECRET_OVERLAP, found.created_at)
        rotations = _count_rotations(found, since=since)
        if rotations >= MAX_SECRETS - 1:
            raise Conflict(
                "The secret was already changed %(count)s times today. Try again tomorrow.",
                code="too_many_secrets",
                count=rotations,
            )
        # All of the last day sign beside it: whoever presses twice has not lost the one that
        # the receiver knows.
        found.oldest_generation = found.generation - rotations
        found.generation += 1
        found.rotated_at = now
        found.save(update_fields=["generation", "oldest_generation", "rotated_at"])
        record(origin, _audit_event(found, ROTATED))
    webhook.refresh_from_db(fields=["generation", "oldest_generation", "rotated_at"])


def _count_rotations(webhook: Webhook, *, since: datetime) -> int:
    # The audit log alone has their times. Each has replaced one generation.
    entries = AuditEntry.objects.filter(
        action=WEBHOOK, at__gt=since, metadata__contains=str(webhook.uuid)
    )
    told = [load_json(text, default={}) for text in entries.values_list("metadata", flat=True)]
    return sum(one.get("what") == ROTATED for one in told)


def _overlaps(webhook: Webhook, now: datetime) -> bool:
    return webhook.rotated_at is not None and now < webhook.rotated_at + SECRET_OVERLAP


def remove_webhook(webhook: Webhook, *, origin: AuditOrigin) -> None:
    """It goes with its deliveries; the audit log keeps that there was one."""
    with transaction.atomic():
        record(origin, _audit_event(webhook, "removed"))
        Delivery.objects.filter(webhook=webhook.pk).delete()
        Webhook.objects.filter(pk=webhook.pk).delete()


def list_webhooks(workspace: Workspace) -> QuerySet[Webhook]:
    webhooks = Webhook.objects.filter(workspace=workspace).order_by("pk")
    return webhooks.select_related("workspace", "created_by")


def get_webhook(workspace: Workspace, uuid: UUID) -> Webhook:
    """Raises NotFound."""
    found = list_webhooks(workspace).filter(uuid=uuid).first()
    return require_found(found, "This webhook does not exist.")


def read_events(webhook: Webhook) -> list[str]:
    return [str(event) for event in load_json(webhook.events, default=[])]


def read_secret(webhook: Webhook) -> str:
    """For the one who made or rotated it, then."""
    return SECRET_PREFIX + base64.b64encode(_key(webhook, webhook.generation)).decode()


def signing_keys(webhook: Webhook, *, now: datetime) -> list[bytes]:
    """The key of now, and for a day after a rotation those of the day before it."""
    newest = webhook.generation
    oldest = webhook.oldest_generation if _overlaps(webhook, now) else newest
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
    # Without the address, of which a part may be a secret.
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
