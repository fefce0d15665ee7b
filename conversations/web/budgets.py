"""Budgets: a page that lists, sets and ends them."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from conversations.archive.budgets import end_budget, list_budgets, require_budget, set_budget
from conversations.archive.usage_report import UsageRights, usage_rights, workspaces_of_budgets
from conversations.domain.errors import NotPermitted

from .access import post_by_person, visit_of
from .budget_forms import BudgetForm
from .pages import person


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def budgets(request: HttpRequest) -> HttpResponse:
    """What may be used, and what of it is; who may, sets another."""
    rights = usage_rights(person(request))
    if request.method != "POST":
        return _page(request, rights, _form(rights))
    if not rights.sees_others:
        raise NotPermitted("Administrators and owners of workspaces set budgets.")
    form = _form(rights, request.POST.dict())
    if not form.is_valid():
        return _page(request, rights, form, status=400)
    set_budget(visit_of(request).origin, **form.wish)
    messages.success(request, "The budget is set.")
    return redirect("budgets")


def _form(rights: UsageRights, data: dict[str, str] | None = None) -> BudgetForm:
    workspaces = workspaces_of_budgets(rights)
    return BudgetForm(data, workspaces=workspaces, may_limit_all=rights.sees_all)


def _page(
    request: HttpRequest, rights: UsageRights, form: BudgetForm, *, status: int = 200
) -> HttpResponse:
    context: dict[str, Any] = {
        "budgets": list_budgets(rights),
        "form": form,
        "may_set": rights.sees_others,
    }
    return render(request, "budgets.html", context, status=status)


@post_by_person
def budget_end(request: HttpRequest, budget: UUID) -> HttpResponse:
    """One does not count any more."""
    found = require_budget(budget, usage_rights(person(request)))
    end_budget(visit_of(request).origin, found)
    messages.success(request, "The budget does not count any more.")
    return redirect("budgets")
