"""What each role gets from an operation: the rows of the matrix, of the core and of
features."""

from dataclasses import dataclass, field
from typing import Any

from conversations.accounts.tokens import READ
from tests.web.conftest import ROLES

type Statuses = dict[str, int]

type Operation = tuple[str, str]
"""Its method and its path."""


def for_roles(others: int, **named: int) -> Statuses:
    return {role: named.get(role, 401 if role == "stranger" else others) for role in ROLES}


def signed_in(status: int) -> Statuses:
    return for_roles(status)


def readers(status: int) -> Statuses:
    return for_roles(status, other=404, administrator=404, staff=404)


def writers(status: int) -> Statuses:
    return readers(403) | {"member": status, "owner": status}


def owners(status: int) -> Statuses:
    return readers(403) | {"owner": status}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What each role gets, with which scope. ``body`` is sent as JSON, ``query`` follows
    the address, ``file`` is the name under which a file is sent. ``reads``: it shows what
    was said in a session; None: it does if its address names one and a reviewer may."""

    gets: Statuses
    scope: str = READ
    query: str = ""
    body: dict[str, Any] | None = None
    file: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    reads: bool | None = None
