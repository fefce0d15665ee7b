"""What each role gets at an address: the rows of the matrix, of the core and of features."""

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
    """To everybody else the page is not there."""
    return for_roles(stranger=302, others=404, administrator=status, superuser=status)


def keepers(status: int) -> Statuses:
    """To everybody else the page is not there."""
    return administrators(status) | {"reviewer": status}


def reviewers(status: int) -> Statuses:
    """To everybody else the page is not there."""
    return for_roles(stranger=302, others=404, reviewer=status, superuser=status)


def writers(status: int) -> Statuses:
    return readers(403) | {"member": status, "owner": status}


def members(status: int) -> Statuses:
    return readers(404) | {"viewer": status, "member": status, "owner": status}


def managers(status: int) -> Statuses:
    return readers(403) | {"owner": status}


def whose_it_is(status: int) -> Statuses:
    """To everybody else it is not there."""
    return for_roles(stranger=302, others=404, owner=status)


REFUSED = everybody(405)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What each role gets. ``query`` follows the address, ``data`` is what is posted.
    ``reads``: a GET shows what was said in a session; None: it does if its address names
    one."""

    get: Statuses
    post: Statuses
    query: str = ""
    data: dict[str, str] = field(default_factory=dict)
    reads: bool | None = None
