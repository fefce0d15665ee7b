from typing import Any
from uuid import uuid4

from django.utils import timezone

from conversations.features.notices.models import (
    MutedSession,
    Notice,
    NoticeChoice,
    NoticeMessage,
    PushSubscription,
    SessionView,
)
from conversations.models import Device, Run, Session
from tests.web.rows import REFUSED, Row, everybody, for_roles, readers, signed_in, writers

PUBLIC = Row(get=everybody(200), post=everybody(405))

PAGES = {
    "notices_manifest": PUBLIC,
    "notices_worker": PUBLIC,
    "notices_offline": PUBLIC,
    "notifications": Row(get=signed_in(200), post=signed_in(400)),  # no time zone is posted
    "notices_waiting": Row(
        get=for_roles(stranger=401, others=200), post=for_roles(stranger=401, others=405)
    ),
    "notices_shown": Row(
        get=for_roles(stranger=401, others=405), post=for_roles(stranger=401, others=400)
    ),
    "notices_subscribe": Row(
        get=for_roles(stranger=401, others=405), post=for_roles(stranger=401, others=400)
    ),
    "notices_unsubscribe": Row(get=REFUSED, post=signed_in(302)),
    "notices_test": Row(get=REFUSED, post=signed_in(404)),  # no such device
    "session_mute": Row(get=REFUSED, post=readers(302), reads=False),
    "session_watch": Row(get=REFUSED, post=readers(204), reads=False),
    "session_decide": Row(get=REFUSED, post=writers(400)),  # no call is posted
}


def make_page_values(session: Session, _: Any) -> dict[str, Any]:
    return {"device": session.uuid}


def stock(session: Session, run: Run) -> None:
    now, user = timezone.now(), session.owner
    device = Device.objects.create(user=user, created_at=now, last_seen_at=now)
    NoticeChoice.objects.get_or_create(user=user)
    subscription = PushSubscription.objects.create(
        device=device,
        endpoint="https://push.example.org/secret",
        endpoint_digest=uuid4().hex,
        p256dh="secret",
        auth="secret",
        created_at=now,
    )
    MutedSession.objects.get_or_create(user=user, session=session)
    SessionView.objects.get_or_create(
        user=user, session=session, defaults={"seen_at": now, "watched_until": now}
    )
    notice = Notice.objects.create(
        user=user, session=session, run=run, event="asks", subject=uuid4(), created_at=now
    )
    NoticeMessage.objects.create(notice=notice, subscription=subscription, next_at=now)


SAYS_NOTHING = {MutedSession, SessionView, Notice}

BROWSER_PAGES = {"notifications": "/account/notifications/", "offline": "/offline/"}

# A person with a subscribed device and a muted session.
BROWSER_STOCK = """
from django.utils import timezone
from conversations.features.notices.models import MutedSession, NoticeChoice, PushSubscription
from conversations.models import Device, Session
user = Session.objects.order_by("pk").first().owner
NoticeChoice.objects.get_or_create(user=user)
device = Device.objects.filter(user=user).exclude(session_key=None).order_by("-pk").first()
if device:
    PushSubscription.objects.get_or_create(device=device, defaults={
        "endpoint": "https://push.example.org/x", "endpoint_digest": "1" * 64,
        "p256dh": "x", "auth": "x", "created_at": timezone.now()})
MutedSession.objects.get_or_create(user=user, session=Session.objects.order_by("pk").first())
"""
