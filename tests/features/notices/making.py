"""People who are told, in their browsers."""

from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from conversations.features.notices.models import PushSubscription
from conversations.features.notices.service import subscribe

from .push_service import SubscribedBrowser

SITE = "https://loom.example.org"


def subscribe_browser(client: Client, user: User, browser: SubscribedBrowser) -> PushSubscription:
    """The browser of a signed-in person, as the page subscribes it."""
    client.get("/account/notifications/")  # by which its device is known
    given: dict[str, Any] = browser.subscription
    return subscribe(
        user.pk,
        session_key=client.session.session_key or "",
        endpoint=given["endpoint"],
        keys=given["keys"],
        site=SITE,
        zone="UTC",
    )
