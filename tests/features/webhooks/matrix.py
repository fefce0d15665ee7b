from typing import Any

from django.utils import timezone

from conversations.accounts.tokens import HOOKS
from conversations.archive.audit import AuditOrigin
from conversations.features.webhooks.models import Delivery, Webhook
from conversations.features.webhooks.service import create_webhook
from conversations.models import Run, Session
from tests.api.rows import Row as Operation
from tests.api.rows import owners
from tests.web.rows import REFUSED, Row, managers

PAGES = {
    "workspace_webhooks": Row(get=managers(200), post=managers(400)),  # no address is posted
    "workspace_webhook": Row(get=managers(200), post=managers(400)),
    "workspace_webhook_test": Row(get=REFUSED, post=managers(302)),
    "workspace_webhook_rotate": Row(get=REFUSED, post=managers(200)),
    "workspace_webhook_again": Row(get=REFUSED, post=managers(404)),  # no such delivery
    "workspace_webhook_remove": Row(get=managers(200), post=managers(302)),
}

ALL = "/workspaces/{slug}/hooks"
ONE = ALL + "/{hook}"
WISH = {"url": "https://hooks.example.org/token", "events": ["run.completed"]}

OPERATIONS = {
    ("GET", ALL): Operation(gets=owners(200), scope=HOOKS),
    ("POST", ALL): Operation(gets=owners(201), scope=HOOKS, body=WISH),
    ("GET", ONE): Operation(gets=owners(200), scope=HOOKS),
    ("PATCH", ONE): Operation(gets=owners(200), scope=HOOKS, body={"active": False}),
    ("POST", ONE + "/rotate"): Operation(gets=owners(200), scope=HOOKS),
    ("POST", ONE + "/test"): Operation(gets=owners(409), scope=HOOKS),  # it is turned off
    ("GET", ONE + "/deliveries"): Operation(gets=owners(200), scope=HOOKS),
    ("POST", ONE + "/deliveries/{delivery}/again"): Operation(gets=owners(409), scope=HOOKS),
    ("DELETE", ONE): Operation(gets=owners(204), scope=HOOKS),
}


def make_page_values(session: Session, _: Any) -> dict[str, Any]:
    webhook = Webhook.objects.create(
        workspace=session.workspace,
        url="https://example.org/",
        events="[]",
        created_at=timezone.now(),
    )
    return {"webhook": webhook.uuid, "delivery": session.uuid}


def make_operation_values(session: Session) -> dict[str, Any]:
    webhook = create_webhook(
        session.workspace,
        url=str(WISH["url"]),
        events=["run.completed"],
        site="",
        origin=AuditOrigin(user=session.owner),
    )
    return {"hook": webhook.uuid, "delivery": make_delivery(webhook).uuid}


def make_delivery(webhook: Webhook, **more: Any) -> Delivery:
    now = timezone.now()
    return Delivery.objects.create(
        webhook=webhook, event="x", payload="{}", next_at=now, created_at=now, **more
    )


def stock(session: Session, run: Run) -> None:
    webhook = Webhook.objects.create(
        workspace=session.workspace,
        url="https://example.org/secret",
        events="[]",
        created_at=timezone.now(),
    )
    make_delivery(webhook, session=session)


WEBHOOK = "0c9e2f6a-9d0b-4c1e-8f3a-2b7d5e6a1c4f"

BROWSER_PAGES = {
    "webhooks": "/w/example/webhooks/",
    "webhook": f"/w/example/webhooks/{WEBHOOK}/",
}

# A webhook whose deliveries fail.
BROWSER_STOCK = f"""
from django.utils import timezone
from conversations.features.webhooks.models import Delivery, Webhook
from conversations.models import Workspace
now = timezone.now()
made = Webhook.objects.create(uuid="{WEBHOOK}", workspace=Workspace.objects.get(slug="example"),
    url="https://{"long-name." * 12}example.org/hook", events='["run.failed"]', created_at=now,
    failing_since=now, switched_off_at=now, is_active=False)
for state in ("delivered", "failed", "pending"):
    Delivery.objects.create(webhook=made, event="run.waiting_approval", payload="{{}}",
        state=state, next_at=now, created_at=now, attempts=3, status=500,
        error="The receiver responded with 500.")
"""
