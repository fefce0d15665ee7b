"""The browsers in which people are signed in. Whoever signs one out takes its session
away, and with it the cookie's use: the pages that are open there close within seconds.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.sessions.models import Session as BrowserSession
from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from conversations.domain.agents import name_of_agent
from conversations.domain.text import one_line, storable
from conversations.models import Device, SignInLink

MAX_DEVICES_LISTED = 100
"""Devices of a person that are listed."""

KEPT = timedelta(days=90)
"""How long it is known that a device was signed in once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceItem:
    pk: int
    name: str
    agent: str
    address: str
    created_at: datetime
    last_seen_at: datetime
    is_current: bool


def see_device(user_pk: int, *, session_key: str, agent: str, address: str) -> None:
    """The person was seen in the browser that has this session."""
    now = timezone.now()
    facts = {
        "agent": one_line(storable(agent), limit=400),
        "address": address[:45],
        "last_seen_at": now,
    }
    if Device.objects.filter(session_key=session_key).update(**facts):
        return
    Device.objects.filter(user=user_pk, last_seen_at__lt=now - KEPT).delete()
    try:
        with transaction.atomic():
            Device.objects.create(user_id=user_pk, session_key=session_key, created_at=now, **facts)
    except IntegrityError:  # another request of the same browser was first
        return


def list_devices(user_pk: int, *, current: str = "") -> list[DeviceItem]:
    """Where the person is signed in, the last used first. ``current`` is the session of
    the browser that asks."""
    found = _live(Device.objects.filter(user=user_pk)).order_by("-last_seen_at", "-pk")
    return [
        DeviceItem(
            pk=device.pk,
            name=name_of_agent(device.agent),
            agent=device.agent,
            address=device.address,
            created_at=device.created_at,
            last_seen_at=device.last_seen_at,
            is_current=device.session_key == current,
        )
        for device in found[:MAX_DEVICES_LISTED]
    ]


def _live(devices: QuerySet[Device]) -> QuerySet[Device]:
    sessions = BrowserSession.objects.filter(expire_date__gt=timezone.now())
    return devices.filter(Exists(sessions.filter(session_key=OuterRef("session_key"))))


def sign_out_device(user_pk: int, *, device_pk: int) -> bool:
    """False where the person has no such device."""
    return bool(_sign_out(Device.objects.filter(user=user_pk, pk=device_pk)))


def sign_out_devices(user_pk: int, *, but: str = "") -> int:
    """All of a person's, but the browser that has this session; links that would sign
    in are of no use any more. Returns how many there were."""
    with transaction.atomic():
        links = SignInLink.objects.filter(user=user_pk, used_at=None)
        links.update(expires_at=timezone.now())
        return _sign_out(Device.objects.filter(user=user_pk).exclude(session_key=but or None))


def _sign_out(devices: QuerySet[Device]) -> int:
    with transaction.atomic():
        found = dict(devices.exclude(session_key=None).values_list("pk", "session_key"))
        BrowserSession.objects.filter(session_key__in=found.values()).delete()
        ended = Device.objects.filter(pk__in=found)
        return ended.update(session_key=None, ended_at=timezone.now())


def end_device(session_key: str) -> None:
    """The person signed out there, which takes the session away by itself."""
    devices = Device.objects.filter(session_key=session_key)
    devices.update(session_key=None, ended_at=timezone.now())


def move_device(old: str, new: str) -> None:
    """The same browser has another session now."""
    Device.objects.filter(session_key=old).update(session_key=new)
