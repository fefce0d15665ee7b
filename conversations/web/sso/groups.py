"""The groups that the provider decides about."""

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest

from conversations.archive.provided_groups import set_provided_groups
from conversations.web.access import visit_of


def follow_groups(request: HttpRequest, user: User, account: dict[str, Any]) -> None:
    """At each sign-in a person is in those of the groups in ``LOOM_OIDC_GROUPS`` that
    the claim names, and in no others of them. Groups that are not listed there stay as
    they are."""
    offered = settings.LOOM.oidc_groups
    if offered:
        named = {offered[name] for name in account.get("groups", ()) if name in offered}
        set_provided_groups(
            user, named=named, offered=set(offered.values()), origin=visit_of(request, user).origin
        )
