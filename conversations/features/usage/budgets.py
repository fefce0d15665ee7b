"""Budgets: setting and ending them, and what is left of them.

What is left is read from the totals of days, at most thirty-one for each of three, so it
costs the same whatever was used.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from conversations.archive.audit import AuditEvent, AuditOrigin, lock_log, record
from conversations.domain.audit import BUDGET
from conversations.domain.errors import BudgetReached, NotFound
from conversations.domain.events import Info
from conversations.feature import Notices
from conversations.models import Workspace

from .figures import INSTALLATION, MONTH, PERSON, WORKSPACE, BudgetState, period_start
from .models import Budget, BudgetWarning
from .report import UsageRights

MAX_BUDGETS_LISTED = 500


def set_budget(
    origin: AuditOrigin,
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
        lock_log()  # of two that are set at the same time, the later one ends the other
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


def end_budget(origin: AuditOrigin, budget: Budget) -> None:
    """It does not count any more. One that has ended already stays as it is."""
    with transaction.atomic():
        lock_log()
        open_ones = Budget.objects.filter(pk=budget.pk, ended_at=None)
        if open_ones.update(ended_at=timezone.now(), ended_by=origin.user):
            record(origin, _note(budget, "ended"))


def _note(budget: Budget, what: str) -> AuditEvent:
    return AuditEvent(
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
    """The budget, for somebody who may change it: an administrator every one, an owner
    those of the workspace. Raises NotFound."""
    changeable = Q() if rights.sees_all else Q(workspace__in=rights.workspaces)
    budgets = Budget.objects.select_related("workspace", "person")
    found = budgets.filter(changeable, uuid=uuid).first()
    if found is None:
        raise NotFound("This budget doesn't exist or you cannot change it.")
    return found


def list_budgets(rights: UsageRights) -> list[tuple[BudgetState, bool]]:
    """The budgets that count for a person, those of their workspaces and for an
    administrator all; each with whether they may change it."""
    if rights.sees_all:
        return [(state, True) for state in _read_states("TRUE", [])]
    owned = sorted(rights.workspaces)
    marks = ", ".join(["%s"] * len(owned)) or "NULL"
    states = _read_states(
        f"b.person_id = %s OR b.workspace_id IN ({marks})", [rights.person_pk, *owned]
    )
    return [(state, state.scope == WORKSPACE) for state in states]


def read_budgets(
    session_pk: int, *, person_pk: int | None, day: date | None = None
) -> list[BudgetState]:
    """The budgets that a model call in this session counts against, for this person, or
    for the session's owner. One statement, because the first word waits for it."""
    return _read_states(
        "(b.workspace_id IS NULL AND b.person_id IS NULL)"
        " OR b.workspace_id = (SELECT workspace_id FROM conversations_session WHERE id = %s)"
        " OR b.person_id ="
        " COALESCE(%s, (SELECT owner_id FROM conversations_session WHERE id = %s))",
        [session_pk, person_pk, session_pk],
        day=day,
    )


def read_budget(pk: int) -> BudgetState:
    """One that is in force."""
    [state] = _read_states("b.id = %s", [pk])
    return state


_START = "CASE b.period WHEN 'day' THEN %s ELSE %s END"

_STATES = f"""
SELECT b.id, b.uuid, b.workspace_id, b.person_id, w.name, p.username, b.period, b.unit,
    b."limit", b.warn_percent,
    COALESCE((SELECT SUM(CASE b.unit WHEN 'usd' THEN t.cost_microusd ELSE t.tokens END)
        FROM conversations_usagetotal t
        WHERE t.scope = CASE WHEN b.workspace_id IS NOT NULL THEN 'workspace'
            WHEN b.person_id IS NOT NULL THEN 'person' ELSE 'installation' END
        AND t.target = COALESCE(b.workspace_id, b.person_id, 0)
        AND t.day >= {_START} AND t.day <= %s), 0),
    EXISTS(SELECT 1 FROM conversations_budgetwarning v
        WHERE v.budget_id = b.id AND v.starts_on = {_START})
FROM conversations_budget b
LEFT JOIN conversations_workspace w ON w.id = b.workspace_id
LEFT JOIN auth_user p ON p.id = b.person_id
WHERE b.ended_at IS NULL AND ("""


def _read_states(where: str, values: list[Any], *, day: date | None = None) -> list[BudgetState]:
    day = day or datetime.now(UTC).date()
    today, month = (
        connection.ops.adapt_datefield_value(start) for start in (day, period_start(MONTH, day))
    )
    days = [today, month, today, today, month]
    with connection.cursor() as cursor:
        cursor.execute(
            f"{_STATES}{where}) ORDER BY b.id LIMIT {MAX_BUDGETS_LISTED}", [*days, *values]
        )
        rows = cursor.fetchall()
    states = []
    for pk, uuid, workspace, person, name, username, *row in rows:
        period, unit, limit, percent, spent, warned = row
        of_one = WORKSPACE if workspace is not None else PERSON
        states.append(
            BudgetState(
                pk=pk,
                uuid=str(UUID(str(uuid))),
                scope=INSTALLATION if workspace is None and person is None else of_one,
                name=name or username or "",
                period=period,
                unit=unit,
                limit=limit,
                warn_percent=percent,
                starts_on=period_start(period, day),
                spent=int(spent),
                is_warned=bool(warned),
            )
        )
    return states


# Budgets in a run: a notice when one is nearly used up, and the end when one is.


def check_budgets(session_pk: int, person_pk: int | None) -> Notices | None:
    """What is to be said of budgets that are nearly used up. Raises BudgetReached where one
    is used up."""
    near = []
    for state in read_budgets(session_pk, person_pk=person_pk):
        if state.is_used_up:
            who = "An owner of the workspace" if state.scope == WORKSPACE else "An administrator"
            raise BudgetReached(
                f"The budget of {state.of} for {state.period_text} is used up:"
                f" {state.spent_text} of {state.limit_text}. {who} can raise it;"
                f" a new one begins on {state.renews_on} (UTC)."
            )
        if state.is_near and not state.is_warned:
            near.append(state)
    return partial(_warn, near) if near else None


def _warn(near: Sequence[BudgetState]) -> list[Info]:
    rows = []
    for state in near:
        _, is_new = BudgetWarning.objects.get_or_create(
            budget_id=state.pk, starts_on=state.starts_on, defaults={"at": timezone.now()}
        )
        if is_new:
            text = (
                f"{state.percent} % of the budget of {state.of} for {state.period_text} is"
                f" used: {state.spent_text} of {state.limit_text}. When it is used up, the model"
                f" is not asked again before {state.renews_on} (UTC)."
            )
            rows.append(Info(text=text, code="budget_warning"))
    return rows
