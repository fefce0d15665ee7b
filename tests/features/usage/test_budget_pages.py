"""The page of budgets: permissions, checks of the form, and audit entries."""

import re
import threading
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from conversations.archive.audit import AuditOrigin
from conversations.archive.workspaces import add_member, create_workspace
from conversations.features.usage.budgets import end_budget, set_budget
from conversations.features.usage.models import Budget, UsageTotal
from conversations.models import AuditEntry, Workspace
from tests.web.conftest import MakePerson, browser_of
from tests.web.test_moments import shown

pytestmark = pytest.mark.django_db

TEN = {"period": "month", "limit": "10.50", "unit": "usd", "warn_percent": "90"}


@pytest.fixture
def administrator() -> User:
    person = User.objects.create_user("root")
    permission = Permission.objects.get(codename="administer_installation")
    person.user_permissions.add(permission)
    return person


def text_of(client: Client, address: str = "/usage/budgets/") -> str:
    response = client.get(address)
    assert response.status_code == 200
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.content.decode()))


def post(client: Client, **data: str) -> tuple[int, str]:
    response = client.post("/usage/budgets/", TEN | data)
    return response.status_code, response.content.decode()


def test_an_administrator_sets_budgets_of_every_scope(
    administrator: User, workspace: Workspace, user: User
) -> None:
    browser = browser_of(administrator)
    for of, name in (
        ("installation", ""),
        (f"workspace:{workspace.slug}", ""),
        ("person", user.username),
    ):
        assert post(browser, of=of, person=name)[0] == 302
    found = Budget.objects.order_by("pk").values_list("workspace", "person", "limit")
    assert list(found) == [
        (None, None, 10_500_000),
        (workspace.pk, None, 10_500_000),
        (None, user.pk, 10_500_000),
    ]
    entries = AuditEntry.objects.filter(action="budget", actor=administrator)
    assert entries.count() == 3
    assert f'"person":"{user.username}"' in entries.order_by("-number")[0].metadata
    UsageTotal.objects.create(
        scope="person", target=user.pk, day=datetime.now(UTC).date(), cost_microusd=9_800_000
    )
    text = text_of(browser)
    assert "The installation" in text
    assert "$9.80 of $10.50, 93 %: nearly used up" in text
    assert "$9.80 of $10.50" in text_of(browser_of(user), "/usage/")
    UsageTotal.objects.update(cost_microusd=10**9)
    assert "$1 000.00 of $10.50, 9 523 %: used up" in text_of(browser)


def test_an_owner_sets_budgets_only_for_their_workspace(
    workspace: Workspace, user: User, owner: Client, tmp_path: Path
) -> None:
    other = create_workspace(name="Other", root=tmp_path)
    set_budget(
        AuditOrigin(name="x"), workspace=other, period="day", unit="usd", limit=1, warn_percent=9
    )
    assert post(owner, of=f"workspace:{workspace.slug}")[0] == 302
    for of in ("installation", "person", f"workspace:{other.slug}"):
        status, page = post(owner, of=of, person=user.username)
        assert status == 400
        assert "You cannot set a budget for this." in page
    assert Budget.objects.count() == 2
    assert "Other" not in text_of(owner)
    [foreign] = Budget.objects.filter(workspace=other)
    assert owner.post(f"/usage/budgets/{foreign.uuid}/end/").status_code == 404


def test_a_member_cannot_set_a_budget(workspace: Workspace) -> None:
    bea = User.objects.create_user("bea")
    add_member(workspace, user_pk=bea.pk, role="member")
    assert post(browser_of(bea), of=f"workspace:{workspace.slug}")[0] == 403
    assert "Set a budget" not in text_of(browser_of(bea))


def test_a_new_budget_ends_the_old_one_and_keeps_its_record(
    workspace: Workspace, user: User, owner: Client
) -> None:
    of = f"workspace:{workspace.slug}"
    post(owner, of=of)
    post(owner, of=of, limit="20")
    post(owner, of=of, limit="5000", unit="tokens")
    old, new, tokens = Budget.objects.order_by("pk")
    assert (old.ended_at is not None, old.ended_by) == (True, user)
    assert (new.ended_at, new.limit) == (None, 20_000_000)
    assert (tokens.ended_at, tokens.limit) == (None, 5000)
    assert owner.post(f"/usage/budgets/{new.uuid}/end/").status_code == 302
    assert owner.post(f"/usage/budgets/{new.uuid}/end/").status_code == 302
    assert Budget.objects.filter(ended_at=None).count() == 1
    whats = [entry.metadata.split('"what":"')[1][:3] for entry in AuditEntry.objects.all()]
    assert sorted(whats) == ["end", "set", "set", "set"]


@pytest.mark.django_db(transaction=True)
def test_only_one_of_several_concurrent_budgets_is_in_force(
    workspace: Workspace, user: User
) -> None:
    earlier = set_budget(
        AuditOrigin(user=user), period="day", unit="tokens", limit=1, warn_percent=80
    )
    together = threading.Barrier(4)

    def work() -> None:
        together.wait()
        origin = AuditOrigin(user=user)
        for limit in range(5):
            end_budget(origin, earlier)
            set_budget(origin, period="day", unit="tokens", limit=limit, warn_percent=80)
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Budget.objects.count() == 21
    assert Budget.objects.filter(ended_at=None).count() == 1


def test_a_username_is_refused_for_budgets_of_other_scopes(
    administrator: User, workspace: Workspace, user: User
) -> None:
    for of in ("installation", f"workspace:{workspace.slug}"):
        status, html = post(browser_of(administrator), of=of, person=user.username)
        assert status == 400
        assert "Enter a username only with “One person”." in html
        assert f'value="{user.username}"' in html
    assert not Budget.objects.exists()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"limit": ""}, "This field is required."),
        ({"limit": "-1"}, "greater than or equal to 0"),
        ({"limit": "NaN"}, "Enter a number."),
        ({"limit": "1.5", "unit": "tokens"}, "Tokens must be a whole number."),
        ({"warn_percent": "101"}, "less than or equal to 100"),
        ({"of": "person", "person": "nobody\0"}, "This person does not exist."),
    ],
)
def test_an_invalid_budget_is_refused_with_a_message(
    administrator: User, data: dict[str, str], sentence: str
) -> None:
    status, page = post(browser_of(administrator), **{"of": "installation"} | data)
    assert (status, Budget.objects.count()) == (400, 0)
    assert sentence in page


def test_the_query_count_does_not_depend_on_the_number_of_budgets(
    workspace: Workspace, owner: Client
) -> None:
    counts = []
    for unit in ("usd", "tokens"):
        post(owner, of=f"workspace:{workspace.slug}", unit=unit, limit="5")
        text_of(owner)
        with CaptureQueriesContext(connection) as queries:
            text_of(owner)
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_the_page_shows_when_the_next_budget_period_begins(
    make_person: MakePerson, user: User
) -> None:
    set_budget(AuditOrigin(user=user), period="day", unit="usd", limit=10**6, warn_percent=80)
    before = timezone.now()
    [begins] = shown(browser_of(make_person("superuser")), "/usage/budgets/")
    assert begins.timetz() == time(tzinfo=UTC)
    assert before < begins <= timezone.now() + timedelta(days=1)
