"""API operations of usage and budgets."""

from dataclasses import asdict
from datetime import date
from typing import Any, Literal
from uuid import UUID

from django.contrib.auth.models import User
from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status

from conversations.access import access_context_of, get_workspace_for
from conversations.accounts.tokens import MANAGE, READ
from conversations.api.auth import caller_of, needs
from conversations.api.fields import MAX_NUMBER, Page, ShortText
from conversations.domain.errors import Rejected
from conversations.models import Workspace

from .budgets import end_budget, list_budgets, read_budget, require_budget, set_budget
from .figures import UsageSums
from .forms import UsageForm
from .models import Budget
from .report import read_usage, usage_rights, workspaces_of_budgets

router = Router(tags=["Usage"])


class UsageFilters(Schema):
    """Filters of usage: by default, the last thirty days, all people and all models.

    Days are in UTC.
    """

    first: date | None = None
    last: date | None = None
    person: ShortText = Field("", description="A username.")
    model: ShortText = ""


class AllUsageFilters(UsageFilters):
    workspace: str = Field("", max_length=120, description="The slug of the workspace.")


class SumsOut(Schema):
    """The usage of several model calls.

    ``failed`` counts calls without an answer, and ``unpriced`` counts calls whose cost is not
    known. Costs are in millionths of a US dollar.
    """

    calls: int
    failed: int
    unpriced: int
    input_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    output_tokens: int
    cost_microusd: int
    first_token_median_ms: int | None
    first_token_p95_ms: int | None


class UsageDayOut(SumsOut):
    day: date


class UsageLineOut(SumsOut):
    """The usage of one model, person or workspace.

    ``key`` is the model, the username or the workspace's slug.
    """

    key: str
    name: str


class UsageReportOut(Schema):
    """A report of usage.

    ``days`` has the days with calls, in order. Each list has at most the hundred lines with the
    highest cost.
    """

    first: date
    last: date
    total: SumsOut
    days: list[UsageDayOut]
    models: list[UsageLineOut]
    people: list[UsageLineOut]
    workspaces: list[UsageLineOut]


class BudgetFields(Schema):
    """A limit on usage in a period, in millionths of a US dollar or in tokens.

    At ``warn_percent`` of the limit, a warning is shown. When the limit is reached, the model is
    not called any more in that period.
    """

    period: Literal["day", "month"]
    unit: Literal["usd", "tokens"]
    limit: int = Field(ge=0, le=MAX_NUMBER)
    warn_percent: int = Field(80, ge=1, le=100)


class BudgetIn(BudgetFields):
    """A budget of a workspace (slug), a person (username) or, with neither, the installation."""

    workspace: str | None = Field(None, max_length=120)
    person: ShortText | None = None


class BudgetOut(BudgetFields):
    """A budget in the period that began on ``starts_on``.

    ``name`` is the name of the workspace or the person. ``may_change`` says that you may end or
    replace the budget.
    """

    uuid: UUID
    scope: Literal["installation", "workspace", "person"]
    name: str
    spent: int
    starts_on: date
    may_change: bool


@router.get("/usage", auth=needs(READ), response=UsageReportOut, url_name="usage")
def get_usage(request: HttpRequest, filters: Query[AllUsageFilters]) -> dict[str, Any]:
    """Return your own usage and the usage of the workspaces that you own.

    Administrators get all usage.
    """
    return _read(caller_of(request).user, filters)


@router.get(
    "/workspaces/{slug:slug}/usage",
    auth=needs(READ),
    response=UsageReportOut,
    url_name="workspace_usage",
)
def get_workspace_usage(
    request: HttpRequest, slug: str, filters: Query[UsageFilters]
) -> dict[str, Any]:
    """Return the usage that you may see in one workspace."""
    workspace, _ = get_workspace_for(request, slug)
    return _read(caller_of(request).user, filters, workspace)


@router.get("/budgets", auth=needs(READ), response=Page[BudgetOut], url_name="budgets")
def list_all_budgets(request: HttpRequest) -> dict[str, Any]:
    """List the budgets in force that count for you. Administrators get all budgets."""
    budgets = list_budgets(usage_rights(caller_of(request).user))
    return {"items": [_as_budget(budget, may_change) for budget, may_change in budgets]}


@router.post("/budgets", auth=needs(MANAGE), response={201: BudgetOut}, url_name="budgets")
def set_one_budget(request: HttpRequest, new: BudgetIn) -> Status[dict[str, Any]]:
    """Set a budget. It replaces the budget with the same scope, period and unit.

    Administrators can set every budget. Owners of a workspace can set its budgets.
    """
    rights = usage_rights(caller_of(request).user)
    rights.require_budgets()
    workspace = workspaces_of_budgets(rights).filter(slug=new.workspace or "").first()
    if (workspace is None) if new.workspace else not rights.sees_all:
        raise Rejected("You cannot set a budget for this.", code="not_yours")
    person = User.objects.filter(username=new.person).first() if new.person else None
    if new.person and (person is None or workspace is not None or not rights.sees_all):
        raise Rejected(
            "This person does not exist, or a person does not apply to this budget.",
            code="no_such_person",
        )
    budget = set_budget(
        access_context_of(request).origin,
        workspace=workspace,
        person=person,
        **new.model_dump(include=set(BudgetFields.model_fields)),
    )
    return Status(201, _as_budget(read_budget(budget.pk), True))


@router.delete(
    "/budgets/{uuid:budget}", auth=needs(MANAGE), response={204: None}, url_name="budget"
)
def end_one_budget(request: HttpRequest, budget: UUID) -> Status[None]:
    """End a budget. It no longer counts, but stays on record."""
    found = require_budget(budget, usage_rights(caller_of(request).user))
    end_budget(access_context_of(request).origin, found)
    return Status(204, None)


def _as_budget(budget: Budget, may_change: bool) -> dict[str, Any]:
    names = BudgetOut.model_fields.keys() - {"may_change"}
    return {name: getattr(budget, name) for name in names} | {"may_change": may_change}


def _read(user: User, filters: UsageFilters, workspace: Workspace | None = None) -> dict[str, Any]:
    rights = usage_rights(user)
    data = {name: str(value or "") for name, value in filters.model_dump().items()}
    form = UsageForm(rights, data, workspace)
    if not form.is_valid():
        [reason, *_] = [reason for reasons in form.errors.values() for reason in reasons]
        raise Rejected(str(reason), code="bad_filter")
    report = read_usage(user, rights, form.cleaned_data)
    lists = {
        name: [line | _as_sums(line["sums"]) for line in report[name]]
        for name in ("models", "people", "workspaces")
    }
    return lists | {
        "first": form.cleaned_data["first"],
        "last": form.cleaned_data["last"],
        "total": _as_sums(report["total"]),
        "days": [{"day": day} | _as_sums(sums) for day, sums in report["days"].items()],
    }


def _as_sums(sums: UsageSums) -> dict[str, Any]:
    times = {"first_token_median_ms": sums.median_ms, "first_token_p95_ms": sums.p95_ms}
    return asdict(sums) | times
