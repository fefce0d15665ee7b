"""Rows of the access matrix, for the core and for features: the status that each role gets."""

from dataclasses import dataclass, field

from .conftest import ROLES

type Statuses = dict[str, int]


def for_roles(*, stranger: int, others: int, **named: int) -> Statuses:
    return {role: named.get(role, stranger if role == "stranger" else others) for role in ROLES}


def everybody(status: int) -> Statuses:
    return for_roles(stranger=status, others=status)


def signed_in(status: int) -> Statuses:
    return for_roles(stranger=302, others=status)


def readers(status: int) -> Statuses:
    return for_roles(stranger=302, others=status, other=404, administrator=404, staff=404)


def administrators(status: int) -> Statuses:
    """Other signed-in people get 404."""
    return for_roles(stranger=302, others=404, administrator=status, superuser=status)


def keepers(status: int) -> Statuses:
    """Other signed-in people get 404."""
    return administrators(status) | {"reviewer": status}


def reviewers(status: int) -> Statuses:
    """Other signed-in people get 404."""
    return for_roles(stranger=302, others=404, reviewer=status, superuser=status)


def writers(status: int) -> Statuses:
    return readers(403) | {"member": status, "owner": status}


def members(status: int) -> Statuses:
    return readers(404) | {"viewer": status, "member": status, "owner": status}


def managers(status: int) -> Statuses:
    return readers(403) | {"owner": status}


def whose_it_is(status: int) -> Statuses:
    """Other signed-in people get 404."""
    return for_roles(stranger=302, others=404, owner=status)


REFUSED = everybody(405)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The statuses that each role gets at one address.

    ``query`` is appended to the address, and ``data`` is posted. ``reads`` says whether a GET shows
    the content of a session; None means that it does if its address names a session.
    """

    get: Statuses
    post: Statuses
    query: str = ""
    data: dict[str, str] = field(default_factory=dict)
    reads: bool | None = None
