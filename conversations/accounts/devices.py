"""The browsers in which people are signed in.

Signing a device out deletes its browser session, so its cookie stops working and the pages
that are open there close within seconds.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in, user_logged_out
from django.contrib.sessions.backends import db
from django.contrib.sessions.models import Session as BrowserSession
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext

from conversations.archive.storage import is_storage_error
from conversations.domain.text import one_line, storable
from conversations.models import Device, SignInLink
from conversations.web.addresses import client_address

# Parts of a User-Agent header and the name to show for each, so that people recognise their
# devices. The first match counts, because most browsers also name other browsers in the header.
BROWSERS = {
    "Edg": "Edge",
    "OPR/": "Opera",
    "SamsungBrowser/": "Samsung Internet",
    "Vivaldi/": "Vivaldi",
    "Firefox/": "Firefox",
    "FxiOS/": "Firefox",
    "CriOS/": "Chrome",
    "Chrome/": "Chrome",
    "Safari/": "Safari",
    "curl/": "curl",
}

SYSTEMS = {
    "Android": "Android",
    "iPhone": "iPhone",
    "iPad": "iPad",
    "Windows": "Windows",
    "Mac OS X": "macOS",
    "CrOS": "ChromeOS",
    "Linux": "Linux",
}


def name_of_agent(agent: str) -> str:
    """Return a name for a User-Agent header, for instance “Firefox on Linux”."""
    browser = next((name for mark, name in BROWSERS.items() if mark in agent), "")
    system = next((name for mark, name in SYSTEMS.items() if mark in agent), "")
    if browser and system:
        return gettext("%(browser)s on %(system)s") % {"browser": browser, "system": system}
    if system:
        return gettext("A browser on %(system)s") % {"system": system}
    return browser or gettext("A browser")


MAX_DEVICES_LISTED = 100

MAX_DEVICE_AGE = timedelta(days=90)  # devices that were last seen before this are deleted


def record_device_use(user_pk: int, *, session_key: str, agent: str, address: str) -> None:
    """Record that the person was seen in the browser that has this session."""
    now = timezone.now()
    facts = {
        "agent": one_line(storable(agent), limit=400),
        "address": address[:45],
        "last_seen_at": now,
    }
    if Device.objects.filter(session_key=session_key).update(**facts):
        return
    Device.objects.filter(user=user_pk, last_seen_at__lt=now - MAX_DEVICE_AGE).delete()
    try:
        with transaction.atomic():
            Device.objects.create(user_id=user_pk, session_key=session_key, created_at=now, **facts)
    except IntegrityError:  # another request of the same browser was first
        return


def list_devices(user_pk: int, *, current: str = "") -> list[dict[str, Any]]:
    """Return the devices where the person is signed in, the last used first.

    Each device has its columns, its ``name``, and ``is_current``, which is True for the device
    of the session ``current``.
    """
    sessions = BrowserSession.objects.filter(
        session_key=OuterRef("session_key"), expire_date__gt=timezone.now()
    )
    devices = Device.objects.filter(Exists(sessions), user=user_pk).order_by("-last_seen_at", "-pk")
    return [
        device
        | {"name": name_of_agent(device["agent"]), "is_current": device["session_key"] == current}
        for device in devices.values()[:MAX_DEVICES_LISTED]
    ]


def sign_out_device(user_pk: int, *, device_pk: int) -> bool:
    """Sign a device out. Return False if the person has no such device."""
    return bool(_sign_out(Device.objects.filter(user=user_pk, pk=device_pk)))


@transaction.atomic
def sign_out_devices(user_pk: int, *, but: str = "") -> int:
    """Sign out a person's devices except the one with the session ``but``. Return the number."""
    # An unused sign-in link would sign the person in again.
    SignInLink.objects.filter(user=user_pk, used_at=None).update(expires_at=timezone.now())
    return _sign_out(Device.objects.filter(user=user_pk).exclude(session_key=but or None))


@transaction.atomic
def _sign_out(devices: QuerySet[Device]) -> int:
    keys = dict(devices.exclude(session_key=None).values_list("pk", "session_key"))
    BrowserSession.objects.filter(session_key__in=keys.values()).delete()
    ended = Device.objects.filter(pk__in=keys)
    return ended.update(session_key=None, ended_at=timezone.now())


def move_device(old: str, new: str) -> None:
    """Record that the browser session ``old`` has been replaced by ``new``."""
    Device.objects.filter(session_key=old).update(session_key=new)


SEEN_INTERVAL_SECONDS = 300.0

MAX_DEVICES_KNOWN = 10_000

# Browser session key → when this process last recorded that it was seen.
_seen: dict[str, float] = {}


class DeviceMiddleware:
    """A middleware that records every few minutes in which browser a person is seen."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        if request.session.accessed:
            try:
                if isinstance(request.user, User):
                    _record_use(request, request.user)
            except DatabaseError as error:
                # The view has done its work, so the response must not become an error.
                if not is_storage_error(error):
                    raise
                _seen.pop(request.session.session_key or "", None)
        return response


def _record_use(request: HttpRequest, user: User) -> None:
    key = request.session.session_key or ""
    if not key or time.monotonic() - _seen.get(key, -SEEN_INTERVAL_SECONDS) < SEEN_INTERVAL_SECONDS:
        return
    if len(_seen) >= MAX_DEVICES_KNOWN:
        _seen.clear()
    _seen[key] = time.monotonic()
    record_device_use(
        user.pk,
        session_key=key,
        agent=request.headers.get("User-Agent", ""),
        address=client_address(request) or "",
    )


@receiver(user_logged_in)
def record_sign_in(request: HttpRequest, user: User, **_: Any) -> None:
    _record_use(request, user)


@receiver(user_logged_out)
def record_sign_out(request: HttpRequest, **_: Any) -> None:
    if key := request.session.session_key:
        _seen.pop(key, None)
        # Django deletes the session itself.
        Device.objects.filter(session_key=key).update(session_key=None, ended_at=timezone.now())


class SessionStore(db.SessionStore):
    # Keys that Django cannot have made are rejected without a query.
    def _validate_session_key(self, key: str | None) -> bool:
        return key is not None and len(key) >= 8 and key.isascii() and key.isalnum()
