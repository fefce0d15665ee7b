"""People: single-use sign-in links, as a terminal prints them; names; standing."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import timedelta

from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from conversations.models import SignInLink

LINK_LIFETIME = timedelta(hours=12)


def create_sign_in_link(user: User) -> str:
    """A token that signs this person in once, within twelve hours. Only its digest
    is kept; links that are over are removed."""
    token = secrets.token_urlsafe(32)
    now = timezone.now()
    SignInLink.objects.filter(expires_at__lt=now).delete()
    SignInLink.objects.create(
        digest=_digest(token), user=user, created_at=now, expires_at=now + LINK_LIFETIME
    )
    return token


def use_sign_in_link(token: str) -> User | None:
    """The person whom the token signs in; None when it was used, is over or unknown.
    Marking it used is one statement, so two requests cannot both succeed."""
    now = timezone.now()
    links = SignInLink.objects.filter(digest=_digest(token))
    used = links.filter(used_at=None, expires_at__gte=now, user__is_active=True).update(used_at=now)
    return links.select_related("user").get().user if used else None


def read_name(user_pk: int) -> str:
    """What a person is called: the full name, else the name to sign in with."""
    user = User.objects.filter(pk=user_pk).only("first_name", "last_name", "username").first()
    return "" if user is None else user.get_full_name() or user.get_username()


@dataclass(frozen=True, slots=True)
class Standing:
    """What a signed-in person's rights in a workspace rest on. ``role`` is None for
    somebody who is no member."""

    session_data: str
    password: str
    is_active: bool
    role: str | None


def read_standing(session_key: str, *, user_pk: int, workspace_pk: int) -> Standing | None:
    """The person's standing now; None when the browser's session is over. One query,
    because a socket asks before every message."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT s.session_data, u.password, u.is_active, m.role"
            " FROM auth_user u JOIN django_session s ON s.session_key = %s"
            " LEFT JOIN conversations_membership m"
            " ON m.user_id = u.id AND m.workspace_id = %s"
            " WHERE u.id = %s AND s.expire_date > %s",
            [
                session_key,
                workspace_pk,
                user_pk,
                connection.ops.adapt_datetimefield_value(timezone.now()),
            ],
        )
        found = cursor.fetchone()
    if found is None:
        return None
    session_data, password, is_active, role = found
    return Standing(session_data, password, bool(is_active), role)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
