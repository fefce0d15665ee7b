"""The roles in a workspace, from the weakest to the strongest."""

from collections.abc import Iterable

VIEWER, MEMBER, OWNER = "viewer", "member", "owner"
ROLES = (VIEWER, MEMBER, OWNER)


def strongest(roles: Iterable[str]) -> str | None:
    """What somebody is who was given these roles; None for none."""
    return max(roles, key=ROLES.index, default=None)
