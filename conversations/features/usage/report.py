"""Reading usage by day, model, person, workspace and session.

A person sees their own usage, an owner of a workspace sees all usage in it, and an administrator
sees everything. Titles are shown only of sessions that the person may read.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db.models import F, Q, QuerySet, Sum

from conversations.archive.rights import is_administrator, readable_sessions, roles_of_person
from conversations.domain.errors import NotPermitted
from conversations.domain.people import OWNER
from conversations.models import Session, Workspace

from .figures import UsageSums
from .models import UsageDay
from .recording import COUNTED, SUMMED

MAX_REPORT_LINES = 100  # lines of a list, with the highest cost; the CSV file has all rows

BATCH_ROWS = 1000

type Wish = dict[str, Any]
"""The cleaned data of ``UsageForm``: days from ``first`` to ``last``, and optional filters.

The filters are ``workspace`` (a slug), ``person`` (a username) and ``model``. An empty filter
selects everything.
"""


@dataclass(frozen=True, slots=True)
class UsageRights:
    """The usage that a person may see besides their own.

    ``workspaces`` are the primary keys of the workspaces that the person owns.
    """

    person_pk: int
    sees_all: bool
    workspaces: frozenset[int]

    @property
    def sees_others(self) -> bool:
        return self.sees_all or bool(self.workspaces)

    def require_budgets(self) -> None:
        """Raise NotPermitted if the person cannot set any budget."""
        if not self.sees_others:
            raise NotPermitted("Only administrators and owners of workspaces can set budgets.")


type Line = dict[str, Any]
"""The usage of one model, person, workspace or session.

``sums`` is the usage, ``key`` is the value to filter by, and ``name`` is the name that is shown.
Purged sessions share a line whose ``key`` and ``name`` are empty. A session's line also has the
name of its workspace (``detail``), and says whether the person may read it (``is_readable``).
"""


def usage_rights(person: User) -> UsageRights:
    roles = roles_of_person(person.pk)
    owned = frozenset(pk for pk, role in roles.items() if role == OWNER)
    return UsageRights(person.pk, is_administrator(person), owned)


def workspaces_with_usage(rights: UsageRights) -> QuerySet[Workspace]:
    """Return the workspaces by which the person can filter usage, ordered by name."""
    workspaces = Workspace.objects.order_by("name", "pk")
    if rights.sees_all:
        return workspaces
    used = UsageDay.objects.filter(person=rights.person_pk).order_by().values("workspace")
    return workspaces.filter(Q(pk__in=rights.workspaces) | Q(pk__in=used))


def workspaces_of_budgets(rights: UsageRights) -> QuerySet[Workspace]:
    """Return the workspaces whose budgets the person can set, ordered by name."""
    workspaces = Workspace.objects.order_by("name", "pk")
    return workspaces if rights.sees_all else workspaces.filter(pk__in=rights.workspaces)


def read_usage(person: User, rights: UsageRights, filters: Wish) -> dict[str, Any]:
    """Return a report of the usage that the person may see.

    It has the ``total`` (UsageSums), the ``days`` with calls in order (day → UsageSums), and lists
    of lines, the highest cost first: ``models``, ``people``, ``workspaces`` and ``sessions``.
    """
    rows = _rows(rights, filters)
    days = {day: sums for (day,), sums in _grouped(rows, "day", order=("day",))}
    # Rows are grouped by primary keys, and names are read afterwards, so that the number of
    # queries does not depend on the data.
    groups = _grouped(rows, "model", "person", "workspace")
    people = User.objects.in_bulk({pk for (_, pk, _), _ in groups})
    workspaces = Workspace.objects.in_bulk({pk for (_, _, pk), _ in groups})
    names = {pk: user.get_username() for pk, user in people.items()}
    places = {pk: (workspace.slug, workspace.name) for pk, workspace in workspaces.items()}
    return {
        "total": add_up(days.values()),
        "days": days,
        "models": _lines(((model, model), sums) for (model, _, _), sums in groups),
        "people": _lines(((names[pk], names[pk]), sums) for (_, pk, _), sums in groups),
        "workspaces": _lines((places[pk], sums) for (_, _, pk), sums in groups),
        "sessions": _sessions(person, rows, {pk: name for pk, (_, name) in places.items()}),
    }


def _lines(parts: Iterable[tuple[tuple[str, str], UsageSums]]) -> list[Line]:
    # Sums of the same key are added up, and the lines are ordered by cost.
    by_key: dict[tuple[str, str], list[UsageSums]] = {}
    for key_and_name, sums in parts:
        by_key.setdefault(key_and_name, []).append(sums)
    lines = [
        {"key": key, "name": name, "sums": add_up(sums_of_key)}
        for (key, name), sums_of_key in by_key.items()
    ]

    def cost(line: Line) -> tuple[int, int, str]:
        return -line["sums"].cost_microusd, -line["sums"].prompt_tokens, line["key"]

    return sorted(lines, key=cost)[:MAX_REPORT_LINES]


def _rows(rights: UsageRights, filters: Wish) -> QuerySet[UsageDay]:
    rows = UsageDay.objects.filter(day__range=(filters["first"], filters["last"]))
    if not rights.sees_all:
        rows = rows.filter(Q(person=rights.person_pk) | Q(workspace__in=rights.workspaces))
    columns = {"workspace": "workspace__slug", "person": "person__username", "model": "model"}
    return rows.filter(
        **{column: filters[name] for name, column in columns.items() if filters[name]}
    )


def _grouped(
    rows: QuerySet[UsageDay], *by: str, order: tuple[str, ...] = ()
) -> list[tuple[tuple[Any, ...], UsageSums]]:
    sums = {f"sum_{name}": Sum(name) for name in SUMMED}
    tokens = F("sum_input_tokens") + F("sum_cache_read_tokens") + F("sum_cache_write_tokens")
    by_cost: tuple[Any, ...] = (F("sum_cost_microusd").desc(), tokens.desc(), *by)
    summed = rows.order_by().values_list(*by).annotate(**sums).order_by(*(order or by_cost))
    return [(values[: len(by)], _sums(values[len(by) :])) for values in summed]


def _sums(values: Sequence[Any]) -> UsageSums:
    numbers = [int(value) for value in values]
    counted = dict(zip(COUNTED, numbers, strict=False))
    return UsageSums(**counted, first_token=tuple(numbers[len(COUNTED) :]))


def add_up(parts: Any) -> UsageSums:
    """Return the total of several UsageSums."""
    rows = [(*(getattr(sums, name) for name in COUNTED), *sums.first_token) for sums in parts]
    return _sums(tuple(map(sum, zip(*rows, strict=True)))) if rows else UsageSums()


def _sessions(person: User, rows: QuerySet[UsageDay], workspaces: dict[int, str]) -> list[Line]:
    # Find the sessions with the highest cost first, then add up only those.
    tokens = F("input_tokens") + F("cache_read_tokens") + F("cache_write_tokens")
    by_session = rows.order_by().values_list("session", "workspace")
    by_session = by_session.annotate(cost=Sum("cost_microusd"), given=Sum(tokens))
    chosen = list(by_session.order_by("-cost", "-given", "session", "workspace")[:MAX_REPORT_LINES])
    keys = [pk for pk, *_ in chosen if pk is not None]
    of_chosen = rows.filter(Q(session__in=keys) | Q(session=None))
    sums = dict(_grouped(of_chosen, "session", "workspace"))
    uuids = dict(Session.objects.filter(pk__in=keys).order_by().values_list("pk", "uuid"))
    readable = readable_sessions(person).filter(pk__in=keys)
    titles = dict(readable.order_by().values_list("pk", "title"))
    return [
        {
            "key": str(uuids.get(pk, "")),
            "name": titles.get(pk, ""),
            "detail": workspaces[workspace],
            "sums": sums[pk, workspace],
            "is_readable": pk in titles,
        }
        for pk, workspace, *_ in chosen
    ]


def read_session_usage(session: Session) -> list[Line]:
    """Return a line for each model that the session used. The caller checks access."""
    groups = _grouped(UsageDay.objects.filter(session=session), "model")
    return [{"key": model, "name": model, "sums": sums} for (model,), sums in groups]


def walk_usage(rights: UsageRights, filters: Wish) -> Iterator[tuple[tuple[Any, ...], UsageSums]]:
    """Yield all rows by day, in constant memory.

    An item has a tuple (day, workspace, session, person, model) and the sums.
    """
    columns = ("day", "workspace__slug", "session__uuid", "person__username", "model")
    rows = _rows(rights, filters).order_by("day", "pk").values_list("pk", *columns, *SUMMED)
    page = rows[:BATCH_ROWS]
    while batch := list(page):
        for _, *values in batch:
            named = len(columns)
            yield tuple(values[:named]), _sums(values[named:])
        pk, day = batch[-1][:2]
        page = rows.filter(Q(day__gt=day) | Q(day=day, pk__gt=pk))[:BATCH_ROWS]
