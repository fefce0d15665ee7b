"""The pages of usage and budgets, and usage as a CSV file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext, gettext_noop
from django.views.decorators.http import require_http_methods, require_safe

from conversations.access import (
    access_context_of,
    get_session_for,
    get_workspace_for,
    person,
    post_by_person,
    sign_in_first,
)
from conversations.archive.rights import readable_workspaces
from conversations.domain.errors import Rejected
from conversations.domain.text import csv_line, number_text, storable
from conversations.rendering.source_text import duration_text
from conversations.web.attachments import stream_download
from conversations.web.panel import render_panel

from .budgets import end_budget, list_budgets, require_budget, set_budget
from .figures import UsageSums
from .forms import BudgetForm, UsageForm
from .report import (
    Line,
    UsageRights,
    Wish,
    add_up,
    read_session_usage,
    read_usage,
    usage_rights,
    walk_usage,
    workspaces_of_budgets,
)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def budgets(request: HttpRequest) -> HttpResponse:
    rights = usage_rights(person(request))
    is_sent = request.method == "POST"
    if is_sent:
        rights.require_budgets()
    form = BudgetForm(
        request.POST.dict() if is_sent else None,
        workspaces=workspaces_of_budgets(rights),
        may_limit_all=rights.sees_all,
    )
    if form.is_valid():
        set_budget(access_context_of(request).origin, **form.budget_values)
        messages.success(request, gettext("Budget set."))
        return redirect("budgets")
    context = {"budgets": list_budgets(rights), "form": form, "may_set": rights.sees_others}
    return render(request, "usage/budgets.html", context, status=400 if is_sent else 200)


@post_by_person
def budget_end(request: HttpRequest, budget: UUID) -> HttpResponse:
    found = require_budget(budget, usage_rights(person(request)))
    end_budget(access_context_of(request).origin, found)
    messages.success(request, gettext("Budget ended."))
    return redirect("budgets")


MAX_BUDGETS_SHOWN = 5  # budgets beside the sums: those with the smallest share left

COLUMNS = (
    *("day", "workspace", "session", "person", "model", "calls", "failed", "unpriced"),
    *("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens", "cost_usd"),
    *("first_token_median_ms", "first_token_p95_ms"),
)


@login_required
@require_safe
def usage(request: HttpRequest, slug: str = "") -> HttpResponse:
    """Show the usage that the person may see, of one workspace if it is named."""
    user = person(request)
    workspace = None
    named = slug or storable(request.GET.get("workspace", ""))
    # A person may filter by any workspace that they can read, even if they used nothing there.
    if slug or readable_workspaces(user).filter(slug=named).exists():
        workspace, _ = get_workspace_for(request, named)
    rights = usage_rights(user)
    form = UsageForm(rights, request.GET.dict(), workspace)
    context: dict[str, Any] = {"form": form}
    if not form.is_valid():
        return render(request, "usage/usage.html", context, status=400)
    filters = form.cleaned_data
    report = read_usage(user, rights, filters)
    tables = [
        _table(gettext("Models"), gettext("model"), report["models"], form, "model"),
        _table(
            gettext("People"),
            gettext("person"),
            report["people"] if rights.sees_others else [],
            form,
            "person",
        ),
        _table(
            gettext("Workspaces"), gettext("workspace"), report["workspaces"], form, "workspace"
        ),
        _table(gettext("Sessions"), gettext("session"), report["sessions"], form, "session"),
    ]
    budgets = sorted(
        (budget for budget, _ in list_budgets(rights)), key=lambda budget: -budget.percent
    )
    context |= {
        "total": _cells(report["total"]),
        "has_calls": report["total"].calls > 0,
        "unpriced": [line["name"] for line in report["models"] if line["sums"].unpriced],
        "plots": list(make_plots(report["days"], first=filters["first"], last=filters["last"])),
        "days": [{"day": day} | _cells(sums) for day, sums in reversed(report["days"].items())],
        "tables": [table for table in tables if table["lines"]],
        "address": form.address(),
        "budgets": budgets[:MAX_BUDGETS_SHOWN],
    }
    return render(request, "usage/usage.html", context)


def _table(name: str, column: str, lines: list[Line], form: UsageForm, kind: str) -> dict[str, Any]:
    # The bars compare tokens if no line has a cost.
    has_cost = any(line["sums"].cost_microusd for line in lines)
    weights = [line["sums"].cost_microusd if has_cost else line["sums"].tokens for line in lines]
    max_weight = max(weights, default=0) or 1
    return {
        "name": name,
        "column": column,
        "kind": kind,
        "lines": [
            line
            | _cells(line["sums"])
            | {
                "percent": round(100 * weight / max_weight, 1),
                "address": form.address(**{kind: line["key"]}) if kind != "session" else "",
            }
            for line, weight in zip(lines, weights, strict=True)
        ],
    }


def usd(microusd: int) -> str:
    """Return an amount in dollars and cents, whole from $1,000, with four decimals below $0.10."""
    dollars = microusd / 1_000_000
    if not microusd or dollars >= 1000:
        return f"${number_text(round(dollars))}" if microusd else "$0"
    return f"${dollars:.2f}" if dollars >= 0.1 else f"${dollars:.4f}"


def _cells(sums: UsageSums) -> dict[str, Any]:
    return {
        "calls": number_text(sums.calls),
        "failed": number_text(sums.failed) if sums.failed else "",
        "unpriced": number_text(sums.unpriced) if sums.unpriced else "",
        "given": number_text(sums.prompt_tokens),
        "cached": f"{sums.cache_percent} %" if sums.cache_percent is not None else "–",
        "answered": number_text(sums.output_tokens),
        "cost": usd(sums.cost_microusd) if sums.cost_microusd or not sums.unpriced else "–",
        "median": duration_text(sums.median_ms) or "–",
        "slow": duration_text(sums.p95_ms) or "–",
    }


@login_required
@require_safe
def session_usage(request: HttpRequest, uuid: UUID) -> HttpResponse:
    session, access = get_session_for(request, uuid)
    lines = read_session_usage(session)
    context = {
        "heading": gettext("Usage"),
        "total": _cells(add_up(line["sums"] for line in lines)) if lines else None,
        "models": [line | _cells(line["sums"]) for line in lines],
    }
    return render_panel(request, session, access, "usage", context)


@require_safe
async def usage_file(request: HttpRequest) -> HttpResponseBase:
    """Return every row that the page adds up, as CSV."""
    user = await request.auser()
    if not isinstance(user, User):
        return sign_in_first()
    rights = await sync_to_async(usage_rights)(user)
    form = await sync_to_async(UsageForm)(rights, request.GET.dict())
    if not form.is_valid():
        raise Rejected("This period cannot be shown.", code="bad_days")
    wish = form.cleaned_data
    lines = iter(()) if request.method == "HEAD" else _csv(rights, wish)
    name = f"usage-{wish['first']}-{wish['last']}.csv"
    return stream_download(lines, name=name, content_type="text/csv; charset=utf-8")


def _csv(rights: UsageRights, filters: Wish) -> Iterator[str]:
    yield csv_line(COLUMNS)
    for columns, sums in walk_usage(rights, filters):
        yield csv_line(
            (
                *("" if value is None else value for value in columns),
                *(sums.calls, sums.failed, sums.unpriced, sums.input_tokens),
                *(sums.cache_read_tokens, sums.cache_write_tokens, sums.output_tokens),
                f"{sums.cost_microusd / 1_000_000:.6f}",
                *(sums.median_ms, sums.p95_ms),
            )
        )


# Plots by day, as numbers for an SVG that the template draws. The SVG is stretched to the available
# width, so it has bars but no text. The text is around it, and a table below has the same numbers.

PLOT_HEIGHT, DAY_WIDTH = 100, 10

type Plot = tuple[str, Sequence[str], Callable[[UsageSums], Sequence[int]], Callable[[int], str]]

PLOTTED: tuple[Plot, ...] = (
    (gettext_noop("Cost"), (gettext_noop("Cost"),), lambda sums: (sums.cost_microusd,), usd),
    (
        gettext_noop("Tokens"),
        (gettext_noop("Output"), gettext_noop("Input"), gettext_noop("From the cache")),
        lambda sums: (
            sums.output_tokens,
            sums.input_tokens + sums.cache_write_tokens,
            sums.cache_read_tokens,
        ),
        number_text,
    ),
    (
        gettext_noop("Time to first token"),
        (gettext_noop("Median"), "p95"),
        lambda sums: (sums.median_ms or 0, (sums.p95_ms or 0) - (sums.median_ms or 0)),
        duration_text,
    ),
)
"""Name, kinds, values of a bar in the order of the kinds, and the function that formats a value."""


def make_plots(
    days: Mapping[date, UsageSums], *, first: date, last: date
) -> Iterator[dict[str, Any]]:
    """Yield the plots that have any values.

    A plot has a name, the ``kinds`` of pieces from the bottom of a bar to its top, a ``summary``
    of one sentence, and the bars.
    """
    shown_days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    for name, kinds, values_of, words in PLOTTED:
        values = [values_of(days.get(day, UsageSums())) for day in shown_days]
        max_value = max(map(sum, values))
        if not max_value:
            continue
        bars = []
        for number, (day, pieces) in enumerate(zip(shown_days, values, strict=True)):
            parts, top = [], float(PLOT_HEIGHT)
            for kind, value in enumerate(pieces, start=1):
                if value:
                    height = max(0.5, PLOT_HEIGHT * value / max_value)
                    top -= height
                    parts.append({"kind": kind, "y": round(top, 2), "height": round(height, 2)})
            title = f"{day}: {words(sum(pieces))}"
            bars.append({"x": number * DAY_WIDTH, "title": title, "parts": parts})
        peak = shown_days[[sum(pieces) for pieces in values].index(max_value)]
        summary = gettext(
            "%(name)s by day, %(count)s days from %(first)s: highest on %(peak)s, %(value)s."
        )
        yield {
            "name": gettext(name),
            "kinds": [gettext(kind) for kind in kinds],
            "top": words(max_value),
            "summary": summary
            % {
                "name": gettext(name),
                "count": len(shown_days),
                "first": first,
                "peak": peak,
                "value": words(max_value),
            },
            "bars": bars,
            "width": len(bars) * DAY_WIDTH,
        }
