"""What a signed-in person's rights in a workspace rest on, asked again and again while
a page is open: before each message, and every few seconds for all pages at once."""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import batched

from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as BrowserSession
from django.db import connection
from django.utils import timezone

from conversations.domain.people import strongest

from .rights import roles_of_pairs, roles_sql

MAX_PAGES_AT_ONCE = 500
"""Pages that one round of statements asks for."""


@dataclass(frozen=True, slots=True)
class AccessSnapshot:
    """``role`` is None for somebody who is no member."""

    password: str
    is_active: bool
    role: str | None


@dataclass(frozen=True, slots=True)
class OpenPage:
    """Where a page is open: in which browser, whose, and in which workspace."""

    session_key: str
    user_pk: int
    workspace_pk: int


_ROLES = roles_sql("%s")


def read_standing(place: OpenPage) -> AccessSnapshot | None:
    """The person's standing now; None when the browser's session is over. One query,
    because a socket asks before every message."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT u.password, u.is_active, r.role"
            " FROM auth_user u JOIN django_session s ON s.session_key = %s"
            f" LEFT JOIN ({_ROLES}) r ON TRUE WHERE u.id = %s AND s.expire_date > %s",
            [
                place.session_key,
                *(place.workspace_pk, place.user_pk),
                *(place.workspace_pk, place.user_pk),
                place.user_pk,
                connection.ops.adapt_datetimefield_value(timezone.now()),
            ],
        )
        found = cursor.fetchall()
    if not found:
        return None
    password, is_active, _ = found[0]
    roles = [role for *_, role in found if role]
    role = roles[0] if len(roles) == 1 else strongest(roles)
    return AccessSnapshot(password, bool(is_active), role)


def read_standings(places: Collection[OpenPage]) -> dict[OpenPage, AccessSnapshot | None]:
    """The same for many pages: three statements for each 500."""
    found: dict[OpenPage, AccessSnapshot | None] = {}
    for some in batched(places, MAX_PAGES_AT_ONCE, strict=False):
        keys = {place.session_key for place in some}
        live = BrowserSession.objects.filter(session_key__in=keys, expire_date__gt=timezone.now())
        alive = set(live.values_list("session_key", flat=True))
        people = {place.user_pk for place in some}
        accounts = User.objects.filter(pk__in=people).values_list("pk", "password", "is_active")
        known = {pk: (password, is_active) for pk, password, is_active in accounts}
        roles = roles_of_pairs(people, {place.workspace_pk for place in some})
        for place in some:
            is_over = place.session_key not in alive or place.user_pk not in known
            role = roles.get((place.user_pk, place.workspace_pk))
            found[place] = None if is_over else AccessSnapshot(*known[place.user_pk], role)
    return found
