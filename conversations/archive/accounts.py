"""Single-use sign-in links, as a terminal prints them."""

import hashlib
import secrets
from datetime import timedelta

from django.contrib.auth.models import User
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


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
