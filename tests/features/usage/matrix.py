from typing import Any

from django.utils import timezone

from conversations.accounts.tokens import MANAGE
from conversations.archive.audit import AuditOrigin
from conversations.features.usage.budgets import set_budget
from conversations.features.usage.models import Budget, BudgetWarning, UsageDay
from conversations.features.usage.recording import add_call
from conversations.models import ModelCall, Run, Session
from tests.api import rows as api
from tests.web.rows import REFUSED, Row, for_roles, readers, signed_in

PAGES = {
    "session_usage": Row(get=readers(200), post=signed_in(405)),
    "usage": Row(get=signed_in(200), post=signed_in(405)),
    "usage_file": Row(get=signed_in(200), post=REFUSED),
    "budgets": Row(
        get=signed_in(200),
        post=for_roles(stranger=302, others=403, owner=400, administrator=400, superuser=400),
    ),
    "budget_end": Row(get=REFUSED, post=signed_in(404)),  # no such budget
    "workspace_usage": Row(get=readers(200), post=signed_in(405)),
}

LIMIT = {"workspace": "garden", "period": "month", "unit": "usd", "limit": 10_000_000}

OPERATIONS = {
    ("GET", "/usage"): api.Row(gets=api.signed_in(200)),
    ("GET", "/workspaces/{slug}/usage"): api.Row(gets=api.readers(200)),
    ("GET", "/budgets"): api.Row(gets=api.signed_in(200)),
    ("POST", "/budgets"): api.Row(
        gets=api.for_roles(403, owner=201, administrator=201, superuser=201),
        scope=MANAGE,
        body=LIMIT,
    ),
    ("DELETE", "/budgets/{budget}"): api.Row(
        gets=api.for_roles(404, owner=204, administrator=204, superuser=204), scope=MANAGE
    ),
}

SAYS_NOTHING = {UsageDay}


def make_page_values(session: Session, _: Any) -> dict[str, Any]:
    return {"budget": session.uuid}


def make_operation_values(session: Session) -> dict[str, Any]:
    limit = LIMIT | {"workspace": session.workspace, "warn_percent": 80}
    budget = set_budget(AuditOrigin(user=session.owner), **limit)  # type: ignore[arg-type]
    return {"budget": budget.uuid}


def stock(session: Session, run: Run) -> None:
    now = timezone.now()
    add_call(
        ModelCall(
            session=session,
            model="m",
            input_tokens=100,
            cache_read_tokens=0,
            cache_write_tokens=0,
            output_tokens=10,
            cost_microusd=7,
            first_token_ms=300,
            created_at=now,
        ),
        session.owner_id,
    )
    budget = Budget.objects.create(
        workspace=session.workspace, period="day", unit="usd", limit=1, created_at=now
    )
    BudgetWarning.objects.create(budget=budget, starts_on=now, at=now)


BROWSER_PAGES = {"usage": "/usage/", "budgets": "/usage/budgets/"}

BROWSER_STOCK = """
from conversations.archive.audit import AuditOrigin
from conversations.features.usage.budgets import set_budget
set_budget(AuditOrigin(), period="month", unit="usd", limit=10**12, warn_percent=80)
"""
