"""Budgets: setting and ending them, and what is left of them.

What is left is read from the totals of days, at most thirty-one for each of three, so it
costs the same whatever was used.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from uuid import UUID

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from conversations.domain.audit import BUDGET
from conversations.domain.budgets import BudgetState
from conversations.domain.errors import NotFound
from conversations.domain.events import Info
from conversations.domain.usage import (
    DAY,
    INSTALLATION,
    MONTH,
    PERSON,
    TOKENS,
    USD,
    WORKSPACE,
    period_start,
)
from conversations.models import Budget, BudgetWarning, Session, UsageTotal, Workspace

from .append import Appended, NewEvent, append
from .audit import Noted, Origin, record
from .usage_report import UsageRights

MOST_LISTED = 500

type Target = tuple[str, int]


def set_budget(
    origin: Origin,
    *,
    workspace: Workspace | None = None,
    person: User | None = None,
    period: str,
    unit: str,
    limit: int,
    warn_percent: int,
) -> Budget:
    """A budget of a workspace, of a person, or of the installation, in the place of the
    one that it has for this period and unit."""
    now = timezone.now()
    same = Budget.objects.filter(
        workspace=workspace, person=person, period=period, unit=unit, ended_at=None
    )
    with transaction.atomic():
        same.update(ended_at=now, ended_by=origin.user)
        budget = Budget.objects.create(
            workspace=workspace,
            person=person,
            period=period,
            unit=unit,
            limit=limit,
            warn_percent=warn_percent,
            created_at=now,
            created_by=origin.user,
        )
        record(origin, _note(budget, "set"))
    return budget


def end_budget(origin: Origin, budget: Budget) -> None:
    """It does not count any more. One that has ended already stays as it is."""
    with transaction.atomic():
        open_ones = Budget.objects.filter(pk=budget.pk, ended_at=None)
        if open_ones.update(ended_at=timezone.now(), ended_by=origin.user):
            record(origin, _note(budget, "ended"))


def _note(budget: Budget, what: str) -> Noted:
    return Noted(
        action=BUDGET,
        workspace=budget.workspace.slug if budget.workspace else "",
        metadata={
            "what": what,
            "person": budget.person.get_username() if budget.person else "",
            "period": budget.period,
            "unit": budget.unit,
            "limit": budget.limit,
            "warn_percent": budget.warn_percent,
        },
    )


def require_budget(uuid: UUID, rights: UsageRights) -> Budget:
    """The budget, for somebody who may change it. Raises NotFound."""
    budgets = Budget.objects.select_related("workspace", "person")
    found = budgets.filter(_changeable(rights), uuid=uuid).first()
    if found is None:
        raise NotFound("There is no such budget, or it is not yours to change.")
    return found


def _changeable(rights: UsageRights) -> Q:
    """An administrator changes every budget, an owner those of the workspace."""
    return Q() if rights.sees_all else Q(workspace__in=rights.workspaces)


def list_budgets(rights: UsageRights) -> list[tuple[BudgetState, bool]]:
    """The budgets that count for a person, those of their workspaces and for an
    administrator all; each with whether they may change it."""
    seen = Q(person=rights.person_pk) | _changeable(rights) if not rights.sees_all else Q()
    budgets = _in_force().filter(seen).order_by("workspace__name", "person__username", "pk")
    states = _read_states(budgets[:MOST_LISTED], _today())
    own = set(_in_force().filter(_changeable(rights)).values_list("pk", flat=True))
    return [(state, state.pk in own) for state in states]


def read_budgets(
    session_pk: int, *, person_pk: int | None, day: date | None = None
) -> list[BudgetState]:
    """The budgets that a model call in this session counts against, for this person, or
    for the session's owner."""
    session = Session.objects.filter(pk=session_pk)
    of_person = Q(person__in=session.values("owner")) if person_pk is None else Q(person=person_pk)
    of_nobody = Q(workspace=None, person=None)
    budgets = _in_force().filter(
        of_nobody | Q(workspace__in=session.values("workspace")) | of_person
    )
    return _read_states(budgets.order_by("pk"), day or _today())


def _in_force() -> QuerySet[Budget]:
    return Budget.objects.filter(ended_at=None)


def _today() -> date:
    return datetime.now(UTC).date()


def _read_states(budgets: QuerySet[Budget], day: date) -> list[BudgetState]:
    """In two queries."""
    month = period_start(MONTH, day)
    warned = BudgetWarning.objects.filter(
        Q(budget__period=DAY, starts_on=day) | Q(budget__period=MONTH, starts_on=month),
        budget=OuterRef("pk"),
    )
    found = list(
        budgets.annotate(
            is_warned=Exists(warned),
            workspace_name=F("workspace__name"),
            person_name=F("person__username"),
        )
    )
    spent = _read_spent({_target(budget) for budget in found}, day) if found else {}
    return [
        BudgetState(
            pk=budget.pk,
            uuid=str(budget.uuid),
            scope=_target(budget)[0],
            name=budget.workspace_name or budget.person_name or "",
            period=budget.period,
            unit=budget.unit,
            limit=budget.limit,
            warn_percent=budget.warn_percent,
            starts_on=period_start(budget.period, day),
            spent=spent.get((*_target(budget), budget.period, budget.unit), 0),
            is_warned=budget.is_warned,
        )
        for budget in found
    ]


def _target(budget: Budget) -> Target:
    if budget.workspace_id is not None:
        return WORKSPACE, budget.workspace_id
    return (PERSON, budget.person_id) if budget.person_id is not None else (INSTALLATION, 0)


def _read_spent(targets: Iterable[Target], day: date) -> dict[tuple[str, int, str, str], int]:
    """(Scope, target, period, unit) → what was used of it in the period of that day."""
    chosen = Q()
    for scope, target in targets:
        chosen |= Q(scope=scope, target=target)
    totals = UsageTotal.objects.filter(
        chosen, day__gte=period_start(MONTH, day), day__lte=day
    ).order_by()
    spent: dict[tuple[str, int, str, str], int] = {}
    for scope, target, of_day, tokens, cost in totals.values_list(
        "scope", "target", "day", "tokens", "cost_microusd"
    ):
        for period in (MONTH, DAY) if of_day == day else (MONTH,):
            for unit, amount in ((USD, cost), (TOKENS, tokens)):
                key = (scope, target, period, unit)
                spent[key] = spent.get(key, 0) + amount
    return spent


def append_budget_warnings(
    session_pk: int, *, session: UUID, notices: Sequence[tuple[BudgetState, Info]]
) -> Appended:
    """Say in a session, once in a period, that budgets are nearly used up; nothing of what
    was said meanwhile, there or elsewhere."""
    with transaction.atomic():
        new = [notice for state, notice in notices if _note_warning(state)]
        if not new:
            return Appended(turns=[], rows=[])
        return append(
            session_pk, session_uuid=session, events=[NewEvent(payload=notice) for notice in new]
        )


def _note_warning(state: BudgetState) -> bool:
    _, is_new = BudgetWarning.objects.get_or_create(
        budget_id=state.pk, starts_on=state.starts_on, defaults={"at": timezone.now()}
    )
    return is_new
