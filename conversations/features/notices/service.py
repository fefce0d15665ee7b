"""People's choices of notices, push subscriptions, muted sessions and views of sessions."""

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
from .models import (
    PENDING,
    MutedSession,
    NoticeChoice,
    NoticeMessage,
    PushSubscription,
    SessionView,
)

# A page that is in view reports again within this time (static/notices/watching.js).
VIEW_LIFETIME = timedelta(seconds=15)
MAX_ENDED_SUBSCRIPTIONS = 100  # removed in one go


def read_choice(user_pk: int) -> NoticeChoice:
    """Return the person's choice of notices, or an unsaved one with the default values."""
    return NoticeChoice.objects.filter(user=user_pk).first() or NoticeChoice(user_id=user_pk)


@transaction.atomic
def save_choice(user_pk: int, *, site: str, **chosen: Any) -> None:
    """Save the choice, and check the messages that the earlier quiet hours held back again."""
    now = timezone.now()
    held_until = quiet_until(read_choice(user_pk), now)
    NoticeChoice.objects.update_or_create(user_id=user_pk, defaults=chosen | {"site": site})
    if held_until is not None:
        # Only they have exactly this time. Other pending messages may be being sent.
        held = NoticeMessage.objects.filter(notice__user=user_pk, state=PENDING, next_at=held_until)
        held.update(next_at=now)


# Devices. A subscription is valid for as long as its device is signed in.


def _signed_in_subscriptions() -> QuerySet[PushSubscription]:
    sessions = BrowserSession.objects.filter(
        session_key=OuterRef("device__session_key"), expire_date__gt=timezone.now()
    )
    return PushSubscription.objects.filter(Exists(sessions), device__user__is_active=True)


def list_subscriptions(user_pk: int) -> QuerySet[PushSubscription]:
    subscriptions = _signed_in_subscriptions().filter(device__user=user_pk)
    return subscriptions.select_related("device").order_by("-created_at", "-pk")


def list_ended() -> list[PushSubscription]:
    """Return subscriptions whose device is no longer signed in, whichever process ended it."""
    # This is called every second, and most installations have no subscriptions.
    if not has_row("SELECT 1 FROM conversations_pushsubscription LIMIT 1"):
        return []
    ended = PushSubscription.objects.exclude(pk__in=_signed_in_subscriptions().values("pk"))
    return list(ended.order_by("pk")[:MAX_ENDED_SUBSCRIPTIONS])


def is_signed_in(subscription: PushSubscription) -> bool:
    """Return whether the device's session still signs in the person who owns the device.

    A session is no longer valid if, for instance, the password has changed.
    """
    device = subscription.device
    return bool(device.session_key) and read_signed_in(device.session_key).pk == device.user_id


def find_subscription(user_pk: int, session_key: str | None) -> PushSubscription | None:
    """Return the subscription of the browser with this session key, or None."""
    return list_subscriptions(user_pk).filter(device__session_key=session_key or "").first()


@transaction.atomic
def subscribe(
    user_pk: int, *, session_key: str, endpoint: str, keys: Mapping[str, Any], site: str, zone: str
) -> PushSubscription:
    """Subscribe the browser with this session key to notices.

    ``endpoint`` has to be checked already. ``zone`` is the browser's time zone, which becomes the
    default of a person who has not chosen any notices yet. Raise Rejected if the keys are invalid
    or the device is unknown.
    """
    p256dh, auth = str(keys.get("p256dh") or ""), str(keys.get("auth") or "")
    try:
        vapid.check_browser_keys(p256dh, auth)
    except ValueError as error:
        raise Rejected(
            "These keys are not valid for a push subscription.", code="bad_keys"
        ) from error
    device = Device.objects.filter(user=user_pk, session_key=session_key).first()
    if device is None:
        raise Rejected("This device is not known yet. Reload the page.", code="no_device")
    digest = sha256(endpoint.encode()).hexdigest()
    # Another person may have used the same browser before.
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
    """Make the device show a test when it is woken next.

    Raise NotFound if notices are off for the device.
    """
    row = list_subscriptions(user_pk).filter(uuid=uuid).first()
    subscription = require_found(row, "Notifications are off for this device.")
    PushSubscription.objects.filter(pk=subscription.pk).update(is_tested=True)
    return subscription


def end_test(subscription: PushSubscription) -> None:
    PushSubscription.objects.filter(pk=subscription.pk).update(is_tested=False)


def remove_subscription(pk: int) -> None:
    PushSubscription.objects.filter(pk=pk).delete()


# Sessions.


@dataclass(frozen=True, slots=True)
class NoticeStatus:
    """Whether a person has chosen notices at all, and whether a session is muted for them."""

    anything: bool
    is_muted: bool


def notice_status_of(request: HttpRequest, session_uuid: UUID) -> NoticeStatus:
    """Return the status for the request's person, read once for each request."""
    status = getattr(request, "loom_told", None)
    if not isinstance(status, NoticeStatus):
        status = read_notice_status(person(request).pk, session_uuid)
        request.loom_told = status  # type: ignore[attr-defined]
    return status


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
    """Return the person's muted sessions that they may still read, because titles are shown."""
    muted = MutedSession.objects.filter(user=user, session__in=readable_sessions(user))
    return muted.select_related("session").order_by("-pk")


def record_view(user_pk: int, session: Session, *, is_open: bool) -> None:
    """Record that the person has the session's page in view or, without ``is_open``, has left."""
    now = timezone.now()
    if is_open:
        SessionView.objects.update_or_create(
            user_id=user_pk,
            session=session,
            defaults={"seen_at": now, "watched_until": now + VIEW_LIFETIME},
        )
    else:
        # If the page is in view in another window, that window reports it again.
        SessionView.objects.filter(user=user_pk, session=session).update(watched_until=now)


def forget_views(before: datetime) -> None:
    SessionView.objects.filter(watched_until__lt=before).delete()


# Quiet hours.


def quiet_until(choice: NoticeChoice, now: datetime) -> datetime | None:
    """Return when the current quiet hours end, or None if these are no quiet hours."""
    begin, end = choice.quiet_from, choice.quiet_until
    if begin is None or end is None or begin == end:
        return None
    local_now = now.astimezone(zone_of(choice.zone))
    clock = local_now.time().replace(tzinfo=None)
    # If the hours begin after they end, they last over midnight.
    is_quiet = (begin <= clock < end) if begin < end else (clock >= begin or clock < end)
    if not is_quiet:
        return None
    # The quiet hours end when the clock next shows ``end``, which may be tomorrow. When clocks are
    # set back, an hour occurs twice: in its second occurrence, ``end`` means the second one, too.
    day = local_now.date() + timedelta(days=int(clock >= end))
    ends = datetime.combine(day, end.replace(fold=local_now.fold), tzinfo=local_now.tzinfo)
    return ends.astimezone(now.tzinfo)
