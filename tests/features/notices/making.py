"""Subscribed browsers for tests."""

from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from conversations.features.notices.models import PushSubscription
from conversations.features.notices.service import subscribe

from .push_service import SubscribedBrowser

SITE = "https://loom.example.org"


def subscribe_browser(client: Client, user: User, browser: SubscribedBrowser) -> PushSubscription:
    """Subscribe the browser of a signed-in person, as the page does."""
    client.get("/account/notifications/")  # this request creates the device
    given: dict[str, Any] = browser.subscription
    return subscribe(
        user.pk,
        session_key=client.session.session_key or "",
        endpoint=given["endpoint"],
        keys=given["keys"],
        site=SITE,
        zone="UTC",
    )
