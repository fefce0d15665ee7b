"""What the installation has of a person, for that person: the account, and the sessions
that are theirs."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet

from conversations.domain.digest import instant
from conversations.domain.jsontext import dump_json
from conversations.models import Device, Membership, Session, WorkspaceGroup

from .export_sessions import session_lines
from .preferences import read_preferences
from .rights import is_administrator, is_reviewer
from .roles import workspaces_of
from .walking import walk_rows


def account_data(user: User) -> dict[str, Any]:
    """The account as plain JSON. Nothing in it signs anybody in."""
    return {
        "username": user.get_username(),
        "first_name": user.first_name,
        "last_name": user.last_name,
        "email": user.email,
        "joined_at": instant(user.date_joined),
        "last_sign_in": instant(user.last_login) if user.last_login else None,
        "is_reviewer": is_reviewer(user),
        "is_administrator": is_administrator(user),
        "preferences": asdict(read_preferences(user.pk)),
        "workspaces": list(_memberships(user)),
        "groups": list(user.groups.order_by("name").values_list("name", flat=True)),
        "devices": list(_devices(user)),
    }


def _memberships(user: User) -> Iterator[dict[str, Any]]:
    own = Membership.objects.filter(user=user).order_by("workspace__slug")
    for slug, role in own.values_list("workspace__slug", "role"):
        yield {"workspace": slug, "role": role}
    groups = WorkspaceGroup.objects.filter(group__user=user).order_by("workspace__slug", "pk")
    for slug, group, role in groups.values_list("workspace__slug", "group__name", "role"):
        yield {"workspace": slug, "group": group, "role": role}


def _devices(user: User) -> Iterator[dict[str, Any]]:
    for device in Device.objects.filter(user=user).order_by("pk"):
        yield {
            "agent": device.agent,
            "address": device.address,
            "created_at": instant(device.created_at),
            "last_seen_at": instant(device.last_seen_at),
            "ended_at": instant(device.ended_at) if device.ended_at else None,
        }


def own_sessions(user: User) -> QuerySet[Session]:
    """The person's sessions in workspaces that they are in: what somebody has left is
    not theirs to read any more."""
    return Session.objects.filter(owner=user, workspace__in=workspaces_of(user.pk))


def account_text(user: User) -> Iterator[bytes]:
    yield (dump_json(account_data(user)) + "\n").encode("utf-8", "backslashreplace")


def own_session_text(user: User) -> Iterator[bytes]:
    """One interchange file of all of them, the oldest first. Memory does not grow with
    their number or length."""
    for row in walk_rows(own_sessions(user), "pk", key="pk"):
        of_key = Session.objects.select_related("workspace", "owner", "parent")
        for found in of_key.filter(pk=row["pk"]):  # none, where it was purged meanwhile
            for line in session_lines(found):
                yield (line + "\n").encode("utf-8", "backslashreplace")
