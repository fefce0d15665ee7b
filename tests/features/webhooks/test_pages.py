"""The pages of webhooks: making, testing, turning off and on, and removing them."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from conversations.features.webhooks.models import Delivery, Webhook
from conversations.features.webhooks.service import MAX_WEBHOOKS, read_events, read_secret
from conversations.models import Session, Workspace

pytestmark = pytest.mark.django_db

LIST = "/w/garden/webhooks/"
WISH = {"url": "https://hooks.example.org/token", "events": ["run.completed", "run.failed"]}


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def make(owner: Client) -> tuple[Webhook, str]:
    response = owner.post(LIST, WISH)
    assert response.status_code == 200
    assert response["Cache-Control"] == "no-store"
    return Webhook.objects.latest("pk"), response.content.decode()


def test_a_secret_is_shown_once(owner: Client, workspace: Workspace) -> None:
    webhook, html = make(owner)
    assert read_secret(webhook) in html
    assert webhook.site == "http://testserver"
    assert read_events(webhook) == WISH["events"]
    page = f"{LIST}{webhook.uuid}/"
    assert "whsec_" not in owner.get(page).text + owner.get(LIST).text
    rotated = owner.post(f"{page}rotate/")
    webhook.refresh_from_db()
    assert read_secret(webhook) in rotated.text
    assert "The previous secret stays valid" in rotated.text


@pytest.mark.parametrize("url", ["http://example.org/", "https://10.0.0.1/", "example.org", ""])
def test_an_address_that_cannot_be_used_is_refused(
    owner: Client, workspace: Workspace, url: str
) -> None:
    response = owner.post(LIST, WISH | {"url": url})
    assert response.status_code == 400
    assert 'class="error"' in response.text
    assert not Webhook.objects.exists()


def test_the_number_of_webhooks_is_limited(owner: Client, workspace: Workspace) -> None:
    for _ in range(MAX_WEBHOOKS):
        make(owner)
    response = owner.post(LIST, WISH)
    assert response.status_code == 400
    assert "Delete one first" in response.text


def test_deliveries_are_shown_and_sent_again(owner: Client, workspace: Workspace) -> None:
    webhook, _ = make(owner)
    page = f"{LIST}{webhook.uuid}/"
    assert "A test message is being sent" in owner.post(f"{page}test/", follow=True).text
    delivery = Delivery.objects.get()
    again = f"{page}deliveries/{delivery.uuid}/again/"
    assert "is already being delivered" in owner.post(again, follow=True).text
    Delivery.objects.update(state="failed", status=500, attempts=10, error="No")
    text = text_of(owner.get(page).text)
    assert "webhook.test failed" in text
    assert "10 attempts response 500" in text
    assert "is being sent again" in owner.post(again, follow=True).text
    delivery.refresh_from_db()
    assert (delivery.state, delivery.attempts) == ("pending", 0)


def test_a_delivery_names_its_session(owner: Client, session: Session) -> None:
    webhook, _ = make(owner)
    owner.post(f"{LIST}{webhook.uuid}/test/")
    Session.objects.update(title="Plant the beans")
    Delivery.objects.update(session=session, event="run.failed")
    page = owner.get(f"{LIST}{webhook.uuid}/").text
    assert re.search(rf'href="/s/{session.uuid}/">\s*Plant the beans</a>', page)


def test_a_webhook_turned_off_by_the_server_can_be_turned_on(
    owner: Client, workspace: Workspace
) -> None:
    webhook, _ = make(owner)
    page = f"{LIST}{webhook.uuid}/"
    long_ago = timezone.now() - timedelta(days=9)
    Webhook.objects.update(failing_since=long_ago)
    assert "Deliveries are failing and are retried." in owner.get(page).text
    owner.post(f"{page}test/")
    Delivery.objects.update(state="failed", status=410)
    Webhook.objects.update(is_active=False, switched_off_at=timezone.now())
    assert "The server turned this webhook off" in owner.get(page).text
    assert "Turn it on first" in owner.post(f"{page}test/", follow=True).text
    failed = Delivery.objects.get()
    again = owner.post(f"{page}deliveries/{failed.uuid}/again/", follow=True).text
    assert "Turn it on first" in again
    failed.refresh_from_db()
    assert failed.state == "failed"
    owner.post(page, WISH | {"is_active": "on"})
    webhook.refresh_from_db()
    assert (webhook.is_active, webhook.failing_since) == (True, None)
    # Another owner has changed fields since this page was opened. The form leaves them alone, so
    # they keep their new values.
    shown = dict(owner.get(page).context["form"].shown)
    Webhook.objects.update(events='["run.failed"]', with_text=True)
    owner.post(page, shown | WISH)
    webhook.refresh_from_db()
    assert (webhook.is_active, read_events(webhook), webhook.with_text) == (
        False,
        ["run.failed"],
        True,
    )
    overtaken = owner.post(page, shown | WISH | {"events": ["run.completed"]})
    assert "someone else has changed: Events." in overtaken.text
    assert re.search(r'class="tag">off<', owner.get(page).text)
    assert f'href="{page}remove/"' in owner.get(page).text
    assert "This cannot be undone." in owner.get(f"{page}remove/").text
    assert Webhook.objects.exists()
    owner.post(f"{page}remove/")
    assert not Webhook.objects.exists()
