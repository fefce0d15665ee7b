"""People: single-use sign-in links, as a terminal prints them; names."""

import hashlib
import secrets
from datetime import timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from conversations.domain.audit import ROLE
from conversations.models import SignInLink

from .audit import AuditEvent, AuditOrigin, record

LINK_LIFETIME = timedelta(hours=12)


def create_first_superuser(username: str) -> User:
    """The account of whoever starts the server, where no superuser can sign in yet."""
    with transaction.atomic():
        user = User.objects.create_superuser(username=username)
        metadata = {"person": username, "account": "made", "rank": "superuser, staff"}
        record(AuditOrigin(name="the first start"), AuditEvent(action=ROLE, metadata=metadata))
    return user


def create_sign_in_link(user: User) -> str:
    """A token that signs this person in once, within twelve hours. Only its digest
    is kept; links that are over are removed."""
    token = secrets.token_urlsafe(32)
    now = timezone.now()
    SignInLink.objects.filter(expires_at__lt=now).delete()
    SignInLink.objects.create(
        digest=digest_of(token), user=user, created_at=now, expires_at=now + LINK_LIFETIME
    )
    return token


def use_sign_in_link(token: str) -> User | None:
    """The person whom the token signs in; None when it was used, is over or unknown.
    Marking it used is one statement, so two requests cannot both succeed."""
    now = timezone.now()
    links = SignInLink.objects.filter(digest=digest_of(token))
    used = links.filter(used_at=None, expires_at__gte=now, user__is_active=True).update(used_at=now)
    return links.select_related("user").get().user if used else None


def read_name(user_pk: int) -> str:
    """What a person is called: the full name, else the name to sign in with."""
    user = User.objects.filter(pk=user_pk).only("first_name", "last_name", "username").first()
    return "" if user is None else user.get_full_name() or user.get_username()


def read_username(user_pk: int) -> str:
    """The name to sign in with."""
    return User.objects.values_list("username", flat=True).filter(pk=user_pk).first() or ""


def digest_of(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
