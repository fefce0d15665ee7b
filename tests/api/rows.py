"""Rows of the matrix: the status that each role gets from an operation.

The core and the features both build their rows with this module.
"""

from dataclasses import dataclass, field
from typing import Any

from conversations.accounts.tokens import READ
from tests.web.conftest import ROLES

type Statuses = dict[str, int]

type Operation = tuple[str, str]
"""Method and path."""


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


def reviewers(status: int) -> Statuses:
    return for_roles(404, reviewer=status, superuser=status)


def administrators(status: int) -> Statuses:
    return for_roles(404, administrator=status, superuser=status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The request of an operation, its scope and the status that each role gets.

    ``body`` is sent as JSON, ``query`` follows the address, and ``file`` is the name of the
    form field for a file. ``reads`` says whether the operation shows what was said in a
    session. If it is None, the operation does when its address names a session and reviewers
    may use it.
    """

    gets: Statuses
    scope: str = READ
    query: str = ""
    body: dict[str, Any] | None = None
    file: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    reads: bool | None = None
