"""Usage and budgets through the API."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from conversations.domain.audit import BUDGET
from conversations.features.usage.budgets import read_budgets
from conversations.features.usage.models import UsageTotal
from conversations.models import AuditEntry, Session
from tests.api.conftest import caller_of, fresh_rates  # noqa: F401 (a fixture)
from tests.web.conftest import MakePerson

from .test_pages import today, use

pytestmark = pytest.mark.django_db

USAGE, BUDGETS = "/api/v1/usage", "/api/v1/budgets"
LIMIT = {"workspace": "garden", "period": "month", "unit": "usd", "limit": 10_000_000}


def post(caller: Client, **changes: Any) -> Any:
    return caller.post(BUDGETS, LIMIT | changes, content_type="application/json")


def test_usage_is_summed_by_day_model_person_and_workspace(session: Session, user: User) -> None:
    caller, yesterday = caller_of(user), today() - timedelta(days=1)
    use(session, user)
    use(session, user, day=yesterday, model="demo", cost_microusd=0)
    found = caller.get(USAGE).json()
    assert [day["day"] for day in found["days"]] == [f"{yesterday}", f"{today()}"]
    assert [line["key"] for line in found["models"]] == ["claude-opus-5-5", "demo"]
    assert [line["key"] for line in found["people"]] == ["ann"]
    assert [line["name"] for line in found["workspaces"]] == ["Garden"]
    assert (found["total"]["calls"], found["total"]["cost_microusd"]) == (6, 1_500_000)
    assert found["total"]["first_token_median_ms"] == 500
    one = caller.get(f"{USAGE}?first={today()}&model=demo").json()
    assert (one["first"], one["days"], one["total"]["calls"]) == (f"{today()}", [], 0)
    assert caller.get("/api/v1/workspaces/garden/usage").json() == found


@pytest.mark.parametrize(
    "query", ["first=2020-01-02&last=2020-01-01", "first=2020-01-01", "workspace=orchard"]
)
def test_an_invalid_filter_is_refused(user: User, query: str) -> None:
    refused = caller_of(user).get(f"{USAGE}?{query}")
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_filter")


def test_members_see_their_own_usage_and_administrators_see_all(
    session: Session, user: User, make_person: MakePerson
) -> None:
    use(session, user)
    for role, calls in (("member", 0), ("administrator", 3)):
        found = caller_of(make_person(role)).get(USAGE).json()
        assert found["total"]["calls"] == calls


def test_a_budget_is_set_listed_replaced_and_ended(session: Session, user: User) -> None:
    caller = caller_of(user)
    UsageTotal.objects.create(
        scope="workspace", target=session.workspace_id, day=today(), cost_microusd=4_000_000
    )
    made = post(caller).json()
    assert made == {
        "uuid": made["uuid"],
        "scope": "workspace",
        "name": "Garden",
        "period": "month",
        "unit": "usd",
        "limit": 10_000_000,
        "warn_percent": 80,
        "spent": 4_000_000,
        "starts_on": f"{today().replace(day=1)}",
        "may_change": True,
    }
    other = post(caller, limit=5).json()
    assert caller.get(BUDGETS).json()["items"] == [other]
    assert caller.delete(f"{BUDGETS}/{other['uuid']}").status_code == 204
    assert caller.get(BUDGETS).json()["items"] == []
    assert [entry.action for entry in AuditEntry.objects.all()] == [BUDGET] * 3


def test_the_role_decides_which_budgets_a_person_may_set(
    session: Session, user: User, make_person: MakePerson
) -> None:
    owner, administrator = caller_of(user), caller_of(make_person("administrator"))
    of_all, of_ann = {"workspace": None}, {"workspace": None, "person": "ann"}
    assert post(owner, **of_all).status_code == 400
    assert post(owner, **of_ann).status_code == 400
    assert post(owner, workspace="orchard").status_code == 400
    assert post(owner, person="ann").status_code == 400
    assert post(administrator, **of_all).json()["scope"] == "installation"
    assert post(administrator, **of_ann).json()["name"] == "ann"
    assert post(administrator, workspace=None, person="nobody").status_code == 400
    assert post(caller_of(make_person("member"))).status_code == 403
    assert [one["may_change"] for one in owner.get(BUDGETS).json()["items"]] == [False, False]


def test_people_see_the_budgets_that_limit_them(
    session: Session, user: User, make_person: MakePerson
) -> None:
    """Members see the budget of their workspace, but not the budget of another person."""
    administrator, member = caller_of(make_person("administrator")), make_person("member")
    stranger = User.objects.create_user("zoe")
    post(administrator, limit=0)
    post(administrator, workspace=None)
    post(administrator, workspace=None, person=user.username)

    def listed(person: User) -> list[tuple[str, bool]]:
        items = caller_of(person).get(BUDGETS).json()["items"]
        return [(one["scope"], one["may_change"]) for one in items]

    for person in (user, member):
        counted = read_budgets(session.pk, person_pk=person.pk)
        assert listed(person) == [
            (budget.scope, person == user and budget.scope == "workspace") for budget in counted
        ]
    assert len(listed(user)) == 3
    assert listed(member) == [("workspace", False), ("installation", False)]
    assert listed(stranger) == [("installation", False)]
