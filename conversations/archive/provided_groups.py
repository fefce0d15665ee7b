"""Groups whose members somebody else decides about: the provider that people sign in by."""

from collections.abc import Collection

from django.contrib.auth.models import Group, User
from django.db import transaction

from conversations.domain.audit import ROLE

from .audit import AuditEvent, AuditOrigin, record


def set_provided_groups(
    user: User, *, named: Collection[str], offered: Collection[str], origin: AuditOrigin
) -> None:
    """Be in those of the ``offered`` groups that are ``named``, and in no others of them.
    A group that is named and not there yet is made. Every change is in the audit log."""
    with transaction.atomic():
        now = set(user.groups.filter(name__in=offered).values_list("name", flat=True))
        joined, left = sorted(set(named) - now), sorted(now - set(named))
        if not joined and not left:
            return
        user.groups.add(*(Group.objects.get_or_create(name=name)[0] for name in joined))
        user.groups.remove(*Group.objects.filter(name__in=left))
        metadata = {"person": user.get_username(), "joined": joined, "left": left}
        record(origin, AuditEvent(action=ROLE, metadata=metadata))
