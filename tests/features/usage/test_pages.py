"""The page of usage: its permissions, its content and its CSV file."""

import csv
import io
import re
from datetime import UTC, date, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext

from conversations.archive.sessions import create_session
from conversations.archive.workspaces import add_member
from conversations.features.usage.models import UsageDay
from conversations.models import Session, Workspace
from tests.web.conftest import browser_of

pytestmark = pytest.mark.django_db


def today() -> date:
    return datetime.now(UTC).date()


def use(session: Session, person: User, /, **fields: Any) -> UsageDay:
    """Create a day's usage: $1.50 and 1 000 tokens, of which 800 came from the cache."""
    usual = {
        "day": today(),
        "model": "claude-opus-5-5",
        "calls": 3,
        "input_tokens": 150,
        "cache_read_tokens": 800,
        "output_tokens": 50,
        "cost_microusd": 1_500_000,
        "first_token_04": 3,
    }
    of = {"workspace": session.workspace, "session": session, "person": person}
    return UsageDay.objects.create(**of | usual | fields)


@pytest.fixture
def bea(workspace: Workspace) -> User:
    person = User.objects.create_user("bea")
    add_member(workspace, user_pk=person.pk, role="member")
    return person


@pytest.fixture
def administrator() -> User:
    person = User.objects.create_user("root")
    permission = Permission.objects.get(codename="administer_installation")
    person.user_permissions.add(permission)
    return person


def text_of(client: Client, address: str = "/usage/", *, status: int = 200) -> str:
    response = client.get(address)
    assert response.status_code == status
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.content.decode()))


def test_a_person_sees_only_their_own_usage(session: Session, user: User, bea: User) -> None:
    use(session, user, model="secret-model", cost_microusd=9_000_000)
    use(create_session(session.workspace, owner=bea, title="Beans"), bea)
    text = text_of(browser_of(bea))
    assert "$1.50" in text
    assert "Beans" in text
    assert "secret-model" not in text
    assert "$9" not in text
    assert "People" not in text
    assert "secret-model" not in text_of(browser_of(bea), f"/usage/?person={user.username}")
    assert "secret-model" not in text_of(browser_of(bea), f"/w/{session.workspace.slug}/usage/")


def test_an_owner_sees_the_usage_of_the_workspace(session: Session, user: User, bea: User) -> None:
    use(session, bea, day=today() - timedelta(days=2))
    use(session, user, model="claude-sonnet-5-5", cost_microusd=500_000)
    text = text_of(browser_of(user))
    assert "$2.00" in text
    assert "bea" in text
    assert "claude-sonnet-5-5" in text
    only = text_of(browser_of(user), "/usage/?person=bea")
    assert "claude-sonnet-5-5" not in only
    assert "Only person bea" in only


def test_a_member_without_usage_can_choose_days_of_a_workspace(
    workspace: Workspace, bea: User
) -> None:
    browser = browser_of(bea)
    spans = re.findall(r'"(/usage/[^"]+first[^"]+)"', browser.get("/w/garden/usage/").text)
    assert spans
    for span in spans:
        assert "No usage in this period" in text_of(browser, unescape(span))


def test_an_administrator_sees_all_usage_but_no_session_titles(
    session: Session, user: User, administrator: User
) -> None:
    Session.objects.filter(pk=session.pk).update(title="A private matter")
    use(session, user)
    text = text_of(browser_of(administrator))
    assert "$1.50" in text
    assert user.username in text
    assert str(session.uuid)[:8] in text
    assert "A private matter" not in text


def test_a_model_without_a_price_is_named(session: Session, user: User) -> None:
    use(session, user)
    use(session, user, model="demo", calls=7, unpriced=7, cost_microusd=0)
    text = text_of(browser_of(user))
    assert "7 calls of demo have no known price and are not included in the cost." in text


def test_the_usage_of_purged_sessions_is_shown(session: Session, user: User) -> None:
    use(session, user, session=None)
    assert "Deleted sessions" in text_of(browser_of(user))


def test_invalid_dates_and_workspaces_are_reported(owner: Client) -> None:
    wrong = {
        "first=2026-02-30": "A date must look like 2026-01-31.",
        "first=2026-02-03&last=2026-02-01": "This date must not be before the first date.",
        "first=2020-01-01&last=2026-02-01": "At most 366 days can be shown at once.",
        "workspace=nowhere": "This workspace does not exist, or you have no access.",
    }
    for query, sentence in wrong.items():
        assert sentence in text_of(owner, f"/usage/?{query}", status=400)
    assert "No usage in this period" in text_of(owner)


def test_only_usage_of_the_requested_days_is_shown(session: Session, user: User) -> None:
    use(session, user, day=date(2026, 1, 31))
    use(session, user, day=date(2026, 2, 1), cost_microusd=7_000_000)
    text = text_of(browser_of(user), "/usage/?first=2026-01-01&last=2026-01-31")
    assert "$1.50" in text
    assert "$7" not in text


def test_the_query_count_does_not_depend_on_the_amount_of_usage(
    session: Session, user: User, bea: User
) -> None:
    browser = browser_of(user)
    use(session, user)
    text_of(browser)
    with CaptureQueriesContext(connection) as few:
        text_of(browser)
    for number in range(20):
        other = create_session(session.workspace, owner=bea)
        use(other, bea, model=f"m{number}", day=today() - timedelta(days=number))
    with CaptureQueriesContext(connection) as many:
        text_of(browser)
    assert len(many) == len(few)


def test_every_plot_has_a_description_and_a_table(session: Session, user: User) -> None:
    use(session, user)
    page = browser_of(user).get("/usage/").content.decode()
    said = re.findall(r'role="img"\s+aria-label="([^"]+)"', page)
    assert [words.split(" by day")[0] for words in said] == [
        "Cost",
        "Tokens",
        "Time to first token",
    ]
    assert f"highest on {today()}, $1.50." in said[0]
    assert f">{today()}</th>" in page
    assert "style=" not in page


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.django_db(transaction=True)
async def test_the_csv_file_has_every_row_and_no_formula(session: Session, user: User) -> None:
    def prepare() -> AsyncClient:
        use(session, user)
        use(session, user, model="=HYPERLINK(1)", session=None, unpriced=1, cost_microusd=0)
        use(session, User.objects.create_user("@bob"), first_token_04=0)
        use(session, user, day=date(2020, 1, 1))
        browser = AsyncClient()
        browser.force_login(user)
        return browser

    browser = await sync_to_async(prepare)()
    response = await browser.get("/usage/usage.csv")
    content = b"".join([piece async for piece in response.streaming_content]).decode()
    rows = rows_of(content)
    assert [(row["model"], row["person"], row["cost_usd"]) for row in rows] == [
        ("claude-opus-5-5", user.username, "1.500000"),
        ("'=HYPERLINK(1)", user.username, "0.000000"),
        ("claude-opus-5-5", "'@bob", "1.500000"),
    ]
    assert rows[0]["session"] == str(session.uuid)
    assert (rows[0]["first_token_median_ms"], rows[2]["first_token_median_ms"]) == ("500", "")
    assert rows[1]["session"] == ""
    assert response["Content-Disposition"].endswith(f'{today()}.csv"')
    assert (await browser.get("/usage/usage.csv?first=x")).status_code == 400


def test_the_panel_shows_the_usage_of_a_session(
    session: Session, user: User, owner: Client
) -> None:
    address = f"/s/{session.uuid}/usage/"
    assert "No model calls yet" in text_of(owner, address)
    use(session, user)
    assert "All by claude-opus-5-5." in text_of(owner, address)
    use(session, user, model="demo", unpriced=1, cost_microusd=0)
    assert "1 call, not included in the cost" in text_of(owner, address)
    use(session, user, model="local", unpriced=1, cost_microusd=0)
    text = text_of(owner, address)
    assert "$1.50 at list prices" in text
    assert "2 calls, not included in the cost" in text
