"""Budgets: setting, ending, reading and checking them.

The spent amount is read from the totals of days. These are at most thirty-one rows for each of a
call's installation, workspace and person, so that reading costs the same whatever was used.
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
from conversations.archive.rights import WORKSPACES_SQL
from conversations.domain.audit import BUDGET
from conversations.domain.errors import BudgetReached, require_found
from conversations.domain.events import Info
from conversations.domain.messages import Message, say
from conversations.feature import Notices
from conversations.models import Workspace

from .figures import (
    INSTALLATION,
    MONTH,
    PERIOD_WORDS,
    WORKSPACE,
    amount_text,
    period_start,
)
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
    """Create a budget of a workspace, a person or, with neither, the installation.

    It replaces the budget in force for the same workspace or person, period and unit.
    """
    now = timezone.now()
    same = Budget.objects.filter(
        workspace=workspace, person=person, period=period, unit=unit, ended_at=None
    )
    with transaction.atomic():
        lock_log()  # if two are set at the same time, the later one ends the earlier one
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
        record(origin, _audit_event(budget, "set"))
    return budget


def end_budget(origin: AuditOrigin, budget: Budget) -> None:
    """End a budget, so that it no longer counts. An ended budget is not changed."""
    with transaction.atomic():
        lock_log()
        open_ones = Budget.objects.filter(pk=budget.pk, ended_at=None)
        if open_ones.update(ended_at=timezone.now(), ended_by=origin.user):
            record(origin, _audit_event(budget, "ended"))


def _audit_event(budget: Budget, what: str) -> AuditEvent:
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
    """Return a budget that the person may change. Raise NotFound if there is none.

    Administrators may change every budget. Owners of a workspace may change its budgets.
    """
    changeable = Q() if rights.sees_all else Q(workspace__in=rights.workspaces)
    budgets = Budget.objects.select_related("workspace", "person").filter(changeable, uuid=uuid)
    return require_found(budgets.first(), "This budget doesn't exist or you cannot change it.")


def list_budgets(rights: UsageRights) -> list[tuple[Budget, bool]]:
    """Return the budgets that count for a person, and for each whether they may change it.

    These are the person's own budgets, the installation's, and the budgets of the workspaces that
    the person belongs to. Administrators get all budgets.
    """
    if rights.sees_all:
        return [(budget, True) for budget in _read_in_force("TRUE", [])]
    budgets = _read_in_force(
        f"{_OF_INSTALLATION} OR b.person_id = %s OR b.workspace_id IN ({WORKSPACES_SQL})",
        [rights.person_pk] * 3,
    )
    return [(budget, budget.workspace_id in rights.workspaces) for budget in budgets]


def read_budgets(
    session_pk: int, *, person_pk: int | None, day: date | None = None
) -> list[Budget]:
    """Return the budgets that a model call in this session counts against.

    The call counts for the person or, if ``person_pk`` is None, for the session's owner. This
    executes only one statement, because the first token of the answer waits for it.
    """
    return _read_in_force(
        f"{_OF_INSTALLATION}"
        " OR b.workspace_id = (SELECT workspace_id FROM conversations_session WHERE id = %s)"
        " OR b.person_id ="
        " COALESCE(%s, (SELECT owner_id FROM conversations_session WHERE id = %s))",
        [session_pk, person_pk, session_pk],
        day=day,
    )


def read_budget(pk: int) -> Budget:
    """Return a budget that is in force."""
    [budget] = _read_in_force("b.id = %s", [pk])
    return budget


_OF_INSTALLATION = "(b.workspace_id IS NULL AND b.person_id IS NULL)"

_START = "CASE b.period WHEN 'day' THEN %s ELSE %s END"

_IN_FORCE = f"""
SELECT b.*, COALESCE(w.name, p.username, '') AS name,
    CAST(COALESCE((SELECT SUM(CASE b.unit WHEN 'usd' THEN t.cost_microusd ELSE t.tokens END)
        FROM conversations_usagetotal t
        WHERE t.scope = CASE WHEN b.workspace_id IS NOT NULL THEN 'workspace'
            WHEN b.person_id IS NOT NULL THEN 'person' ELSE 'installation' END
        AND t.target = COALESCE(b.workspace_id, b.person_id, 0)
        AND t.day >= {_START} AND t.day <= %s), 0) AS bigint) AS spent,
    EXISTS(SELECT 1 FROM conversations_budgetwarning v
        WHERE v.budget_id = b.id AND v.starts_on = {_START}) AS is_warned
FROM conversations_budget b
LEFT JOIN conversations_workspace w ON w.id = b.workspace_id
LEFT JOIN auth_user p ON p.id = b.person_id
WHERE b.ended_at IS NULL AND ("""


def _read_in_force(condition: str, values: list[Any], *, day: date | None = None) -> list[Budget]:
    day = day or datetime.now(UTC).date()
    today, month = (
        connection.ops.adapt_datefield_value(start) for start in (day, period_start(MONTH, day))
    )
    days = [today, month, today, today, month]
    statement = f"{_IN_FORCE}{condition}) ORDER BY b.id LIMIT {MAX_BUDGETS_LISTED}"
    budgets = list(Budget.objects.raw(statement, [*days, *values]))
    for budget in budgets:
        budget.starts_on = period_start(budget.period, day)
    return budgets


# Budgets in a run: a notice when a budget is nearly used up, and an error when it is used up.


def check_budgets(session_pk: int, person_pk: int | None) -> Notices | None:
    """Return a function that writes warnings of budgets that are nearly used up, or None.

    Raise BudgetReached if a budget is used up.
    """
    nearly_used_up = []
    for budget in read_budgets(session_pk, person_pk=person_pk):
        if budget.is_used_up:
            raise BudgetReached(_used_up(budget))
        if budget.is_near and not budget.is_warned:
            nearly_used_up.append(budget)
    return partial(_warn, nearly_used_up) if nearly_used_up else None


def _warn(budgets: Sequence[Budget]) -> list[Info]:
    rows = []
    for budget in budgets:
        _, is_new = BudgetWarning.objects.get_or_create(
            budget=budget, starts_on=budget.starts_on, defaults={"at": timezone.now()}
        )
        if is_new:
            rows.append(Info(text=_nearly_used_up(budget), code="budget_warning"))
    return rows


def _used_up(budget: Budget) -> Message:
    facts = _facts(budget)
    if budget.scope == INSTALLATION:
        return say(
            "The budget of the installation for %(period)s is used up: %(spent)s of %(limit)s. "
            "An administrator can raise it; a new period begins on %(date)s (UTC).",
            **facts,
        )
    if budget.scope == WORKSPACE:
        return say(
            "The budget of the workspace %(name)s for %(period)s is used up: %(spent)s of "
            "%(limit)s. An owner of the workspace can raise it; a new period begins on %(date)s "
            "(UTC).",
            **facts,
        )
    return say(
        "The budget of %(name)s for %(period)s is used up: %(spent)s of %(limit)s. An "
        "administrator can raise it; a new period begins on %(date)s (UTC).",
        **facts,
    )


def _nearly_used_up(budget: Budget) -> Message:
    facts = _facts(budget)
    if budget.scope == INSTALLATION:
        return say(
            "%(percent)s %% of the budget of the installation for %(period)s is used: %(spent)s of "
            "%(limit)s. Once it is used up, the model is not called before %(date)s (UTC).",
            **facts,
        )
    if budget.scope == WORKSPACE:
        return say(
            "%(percent)s %% of the budget of the workspace %(name)s for %(period)s is used: "
            "%(spent)s of %(limit)s. Once it is used up, the model is not called before %(date)s "
            "(UTC).",
            **facts,
        )
    return say(
        "%(percent)s %% of the budget of %(name)s for %(period)s is used: %(spent)s of %(limit)s. "
        "Once it is used up, the model is not called before %(date)s (UTC).",
        **facts,
    )


def _facts(budget: Budget) -> dict[str, Any]:
    return {
        "name": budget.name,
        "period": PERIOD_WORDS[budget.period],
        "percent": budget.percent,
        "spent": amount_text(budget.spent, budget.unit),
        "limit": amount_text(budget.limit, budget.unit),
        "date": f"{budget.renews_on}",
    }
