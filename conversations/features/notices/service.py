"""What people want to be told, the browsers that are told, muted sessions, pages in view."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as BrowserSession
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from conversations.access import person, read_signed_in
from conversations.archive.append import has_row, read_row
from conversations.archive.rights import readable_sessions
from conversations.domain.errors import Rejected, require_found
from conversations.domain.text import zone_of
from conversations.models import Device, Session

from . import vapid
from .models import MutedSession, NoticeChoice, PushSubscription, SessionView

# A page in view says so again before this is over (static/notices/watching.js).
VIEW_LIFETIME = timedelta(seconds=15)
MAX_ENDED_SUBSCRIPTIONS = 100  # That are looked after at once


def read_choice(user_pk: int) -> NoticeChoice:
    """What the person has chosen, or what is usual."""
    return NoticeChoice.objects.filter(user=user_pk).first() or NoticeChoice(user_id=user_pk)


def save_choice(user_pk: int, *, site: str, **chosen: Any) -> None:
    NoticeChoice.objects.update_or_create(user_id=user_pk, defaults=chosen | {"site": site})


# Devices. A subscription is good for as long as its device is signed in.


def _signed_in_subscriptions() -> QuerySet[PushSubscription]:
    sessions = BrowserSession.objects.filter(
        session_key=OuterRef("device__session_key"), expire_date__gt=timezone.now()
    )
    return PushSubscription.objects.filter(Exists(sessions), device__user__is_active=True)


def list_subscriptions(user_pk: int) -> QuerySet[PushSubscription]:
    found = _signed_in_subscriptions().filter(device__user=user_pk)
    return found.select_related("device").order_by("-created_at", "-pk")


def list_ended() -> list[PushSubscription]:
    """Those whose device was signed out, wherever and however."""
    if not has_row("SELECT 1 FROM conversations_pushsubscription LIMIT 1"):
        return []  # as nearly everywhere, and this is asked every second
    ended = PushSubscription.objects.exclude(pk__in=_signed_in_subscriptions().values("pk"))
    return list(ended.order_by("pk")[:MAX_ENDED_SUBSCRIPTIONS])


def is_signed_in(subscription: PushSubscription) -> bool:
    """Whether the device's session still signs in the person whose device it is: what a
    sign-in rests on, such as the password, may have changed."""
    device = subscription.device
    return bool(device.session_key) and read_signed_in(device.session_key).pk == device.user_id


def find_subscription(user_pk: int, session_key: str | None) -> PushSubscription | None:
    """That of the browser with this session."""
    return list_subscriptions(user_pk).filter(device__session_key=session_key or "").first()


@transaction.atomic
def subscribe(
    user_pk: int, *, session_key: str, endpoint: str, keys: Mapping[str, Any], site: str, zone: str
) -> PushSubscription:
    """Have the browser with this session told. ``endpoint`` is one that was checked, ``zone`` where
    its clock is, for who has chosen nothing yet. Raises Rejected."""
    p256dh, auth = str(keys.get("p256dh") or ""), str(keys.get("auth") or "")
    try:
        vapid.check_browser_keys(p256dh, auth)
    except ValueError as error:
        raise Rejected("These are no keys of a push subscription.", code="bad_keys") from error
    device = Device.objects.filter(user=user_pk, session_key=session_key).first()
    if device is None:
        raise Rejected("This device is not known yet. Reload the page.", code="no_device")
    digest = sha256(endpoint.encode()).hexdigest()
    # The same browser may have been another person's before.
    PushSubscription.objects.filter(Q(device=device) | Q(endpoint_digest=digest)).delete()
    usual = {"site": site, "zone": zone_of(zone).key}
    NoticeChoice.objects.get_or_create(user_id=user_pk, defaults=usual)
    return PushSubscription.objects.create(
        device=device,
        endpoint=endpoint,
        endpoint_digest=digest,
        p256dh=p256dh,
        auth=auth,
        site=site,
        created_at=timezone.now(),
    )


def unsubscribe(user_pk: int, *, uuid: UUID) -> None:
    PushSubscription.objects.filter(device__user=user_pk, uuid=uuid).delete()


def begin_test(user_pk: int, *, uuid: UUID) -> PushSubscription:
    """Have the device show a test when it is woken next. Raises NotFound."""
    found = list_subscriptions(user_pk).filter(uuid=uuid).first()
    subscription = require_found(found, "Notifications are off for this device.")
    PushSubscription.objects.filter(pk=subscription.pk).update(is_tested=True)
    return subscription


def end_test(subscription: PushSubscription) -> None:
    PushSubscription.objects.filter(pk=subscription.pk).update(is_tested=False)


def remove_subscription(pk: int) -> None:
    PushSubscription.objects.filter(pk=pk).delete()


# Sessions.


@dataclass(frozen=True, slots=True)
class NoticeStatus:
    """Whether a person is told of anything, and has muted this session."""

    anything: bool
    is_muted: bool


def notice_status_of(request: HttpRequest, session_uuid: UUID) -> NoticeStatus:
    """What holds for who asks; one statement for each page of a chat."""
    found = getattr(request, "loom_told", None)
    if not isinstance(found, NoticeStatus):
        found = read_notice_status(person(request).pk, session_uuid)
        request.loom_told = found  # type: ignore[attr-defined]
    return found


def read_notice_status(user_pk: int, session_uuid: UUID) -> NoticeStatus:
    uuid = Session._meta.get_field("uuid").get_db_prep_value(session_uuid, connection)
    row = read_row(
        "SELECT EXISTS (SELECT 1 FROM conversations_mutedsession m"
        " JOIN conversations_session s ON s.id = m.session_id"
        " WHERE m.user_id = c.user_id AND s.uuid = %s)"
        " FROM conversations_noticechoice c WHERE c.user_id = %s",
        [uuid, user_pk],
    )
    return NoticeStatus(anything=row is not None, is_muted=bool(row and row[0]))


def mute(user_pk: int, session: Session) -> None:
    MutedSession.objects.get_or_create(user_id=user_pk, session=session)


def unmute(user_pk: int, session_uuid: UUID) -> None:
    MutedSession.objects.filter(user=user_pk, session__uuid=session_uuid).delete()


def list_muted(user: User) -> QuerySet[MutedSession]:
    """Those that the person may still read: a title is read, too."""
    muted = MutedSession.objects.filter(user=user, session__in=readable_sessions(user))
    return muted.select_related("session").order_by("-pk")


def record_view(user_pk: int, session: Session, *, is_open: bool) -> None:
    """The person has the session's page in view; or, not ``is_open``, has left it."""
    now = timezone.now()
    if is_open:
        SessionView.objects.update_or_create(
            user_id=user_pk,
            session=session,
            defaults={"seen_at": now, "watched_until": now + VIEW_LIFETIME},
        )
    else:
        # It may be in view in another window, which says so again.
        SessionView.objects.filter(user=user_pk, session=session).update(watched_until=now)


def forget_views(before: datetime) -> None:
    SessionView.objects.filter(watched_until__lt=before).delete()


# Quiet hours.


def quiet_until(choice: NoticeChoice, now: datetime) -> datetime | None:
    """When the person's quiet hours end that have begun; None: it is not quiet now."""
    begin, end = choice.quiet_from, choice.quiet_until
    if begin is None or end is None or begin == end:
        return None
    here = now.astimezone(zone_of(choice.zone))
    clock = here.time().replace(tzinfo=None)
    is_quiet = begin <= clock < end if begin < end else clock >= begin or clock < end
    if not is_quiet:
        return None
    # The next time that the clock shows ``end``: today, or tomorrow after midnight's turn. In
    # autumn an hour comes twice: from its second time on, the first one is over.
    day = here.date() + timedelta(days=int(clock >= end))
    ends = datetime.combine(day, end.replace(fold=here.fold), tzinfo=here.tzinfo)
    return ends.astimezone(now.tzinfo)
