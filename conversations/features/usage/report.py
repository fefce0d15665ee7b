"""Reading what was used: by day, model, person, workspace and session.

A person sees what they used, an owner of a workspace what was used in it, an
administrator everything. Titles are shown of sessions that the person may read.
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

MAX_REPORT_LINES = 100  # lines of a list, those that cost most; the whole is in the file

BATCH_ROWS = 1000

type Wish = dict[str, Any]
"""What is asked for, as ``UsageForm`` has it: days from ``first`` to ``last``, and where not
empty one ``workspace`` (its slug), one ``person`` (the username), one ``model``."""


@dataclass(frozen=True, slots=True)
class UsageRights:
    """Whose use a person may see besides their own. ``workspaces`` are the keys of those
    that they own."""

    person_pk: int
    sees_all: bool
    workspaces: frozenset[int]

    @property
    def sees_others(self) -> bool:
        return self.sees_all or bool(self.workspaces)

    def require_budgets(self) -> None:
        """Raises NotPermitted for who can set none."""
        if not self.sees_others:
            raise NotPermitted("Only administrators and owners of workspaces can set budgets.")


type Line = dict[str, Any]
"""What one model, person, workspace or session used: its ``sums``, by what it is found
(``key``) and how it is called (``name``); both empty for purged sessions together. Of a
session also its workspace (``detail``), and whether it ``is_readable``."""


def usage_rights(person: User) -> UsageRights:
    roles = roles_of_person(person.pk)
    owned = frozenset(pk for pk, role in roles.items() if role == OWNER)
    return UsageRights(person.pk, is_administrator(person), owned)


def workspaces_with_usage(rights: UsageRights) -> QuerySet[Workspace]:
    """Those that the person can choose among, by name."""
    workspaces = Workspace.objects.order_by("name", "pk")
    if rights.sees_all:
        return workspaces
    used = UsageDay.objects.filter(person=rights.person_pk).order_by().values("workspace")
    return workspaces.filter(Q(pk__in=rights.workspaces) | Q(pk__in=used))


def workspaces_of_budgets(rights: UsageRights) -> QuerySet[Workspace]:
    """Those whose budgets the person sets, by name."""
    workspaces = Workspace.objects.order_by("name", "pk")
    return workspaces if rights.sees_all else workspaces.filter(pk__in=rights.workspaces)


def read_usage(person: User, rights: UsageRights, filters: Wish) -> dict[str, Any]:
    """``total`` (Sums), ``days`` (day → Sums, those with calls, in order), and lists of lines,
    in order of cost: ``models``, ``people``, ``workspaces``, ``sessions``."""
    rows = _rows(rights, filters)
    days = {day: sums for (day,), sums in _grouped(rows, "day", order=("day",))}
    # The number of queries does not depend on what there is: rows are grouped by keys, and
    # twice only; names come after that.
    found = _grouped(rows, "model", "person", "workspace")
    people = User.objects.in_bulk({pk for (_, pk, _), _ in found})
    workspaces = Workspace.objects.in_bulk({pk for (_, _, pk), _ in found})
    names = {pk: user.get_username() for pk, user in people.items()}
    places = {pk: (workspace.slug, workspace.name) for pk, workspace in workspaces.items()}
    return {
        "total": add_up(days.values()),
        "days": days,
        "models": _lines(((model, model), sums) for (model, _, _), sums in found),
        "people": _lines(((names[pk], names[pk]), sums) for (_, pk, _), sums in found),
        "workspaces": _lines((places[pk], sums) for (_, _, pk), sums in found),
        "sessions": _sessions(person, rows, {pk: name for pk, (_, name) in places.items()}),
    }


def _lines(parts: Iterable[tuple[tuple[str, str], UsageSums]]) -> list[Line]:
    # What belongs to the same is added up; those of most cost first.
    by_key: dict[tuple[str, str], list[UsageSums]] = {}
    for called, sums in parts:
        by_key.setdefault(called, []).append(sums)
    lines = [{"key": key, "name": name, "sums": add_up(of)} for (key, name), of in by_key.items()]

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
    found = rows.order_by().values_list(*by).annotate(**sums).order_by(*(order or by_cost))
    return [(values[: len(by)], _sums(values[len(by) :])) for values in found]


def _sums(values: Sequence[Any]) -> UsageSums:
    numbers = [int(value) for value in values]
    counted = dict(zip(COUNTED, numbers, strict=False))
    return UsageSums(**counted, first_token=tuple(numbers[len(COUNTED) :]))


def add_up(parts: Any) -> UsageSums:
    """The sums of several together."""
    rows = [(*(getattr(sums, name) for name in COUNTED), *sums.first_token) for sums in parts]
    return _sums(tuple(map(sum, zip(*rows, strict=True)))) if rows else UsageSums()


def _sessions(person: User, rows: QuerySet[UsageDay], workspaces: dict[int, str]) -> list[Line]:
    # First those of most cost are found, then they are added up.
    tokens = F("input_tokens") + F("cache_read_tokens") + F("cache_write_tokens")
    most = rows.order_by().values_list("session", "workspace")
    most = most.annotate(cost=Sum("cost_microusd"), given=Sum(tokens))
    chosen = list(most.order_by("-cost", "-given", "session", "workspace")[:MAX_REPORT_LINES])
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
    """What one session used, for those who may read it: a line for each model."""
    found = _grouped(UsageDay.objects.filter(session=session), "model")
    return [{"key": model, "name": model, "sums": sums} for (model,), sums in found]


def walk_usage(rights: UsageRights, filters: Wish) -> Iterator[tuple[tuple[Any, ...], UsageSums]]:
    """All rows as they are kept, by day, in constant memory: (day, workspace, session, person,
    model) and the sums."""
    columns = ("day", "workspace__slug", "session__uuid", "person__username", "model")
    rows = _rows(rights, filters).order_by("day", "pk").values_list("pk", *columns, *SUMMED)
    page = rows[:BATCH_ROWS]
    while found := list(page):
        for _, *values in found:
            named = len(columns)
            yield tuple(values[:named]), _sums(values[named:])
        pk, day = found[-1][:2]
        page = rows.filter(Q(day__gt=day) | Q(day=day, pk__gt=pk))[:BATCH_ROWS]
