"""Every moment that a page shows is an element that says it in the reader's zone and
language; the text in it is what a browser without scripts shows."""

import re
from datetime import UTC, datetime, time, timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from conversations.archive.audit import AuditOrigin
from conversations.archive.purge import PurgeRequest, purge
from conversations.archive.sessions import create_session
from conversations.features.retention.holds import hold_session
from conversations.features.retention.orders import order_purge
from conversations.features.usage.budgets import set_budget
from conversations.models import Session, Workspace

from .conftest import MakePerson, browser_of, say

pytestmark = pytest.mark.django_db

ELEMENT = re.compile(r"<time [^>]*?datetime=[\"']([^\"']+)[\"']>[^<]+</time>")
DATE = re.compile(r"\d{4}-\d\d-\d\d")


@pytest.fixture
def reader(make_person: MakePerson) -> Client:
    return browser_of(make_person("superuser"))


def shown(reader: Client, address: str) -> list[datetime]:
    """The moments of a page; it has no other dates."""
    response = reader.get(address, follow=True)
    assert response.status_code == 200
    body = response.text.partition("<main")[2]
    assert not DATE.search(re.sub(r"<[^>]*>", " ", ELEMENT.sub(" ", body)))
    moments = [datetime.fromisoformat(text) for text in ELEMENT.findall(body)]
    assert all(moment.tzinfo is not None for moment in moments)
    return moments


def order(session: Session, user: User) -> datetime:
    ordered = order_purge(
        session,
        origin=AuditOrigin(user=user),
        reason="Asked for",
        now=timezone.now(),
        grace=timedelta(days=30),
    )
    return ordered.due_at


@pytest.mark.parametrize("name", ["session", "session_purge"])
def test_when_a_session_will_be_purged(
    owner: Client, session: Session, user: User, name: str
) -> None:
    address = reverse(name, args=[session.uuid])
    if name == "session_purge":
        [before] = shown(owner, address)
        assert timedelta(days=29) < before - timezone.now() <= timedelta(days=30)
    due = order(session, user)
    assert due.replace(microsecond=0) in shown(owner, address)


def test_when_a_purged_session_was_used_and_purged(
    reader: Client, session: Session, user: User
) -> None:
    now = timezone.now().replace(microsecond=0)
    made = purge(
        session,
        order=PurgeRequest(reason="Asked for", by=user),
        origin=AuditOrigin(user=user),
        now=now,
    )
    assert shown(reader, reverse("receipts")) == [now]
    assert shown(reader, reverse("receipt", args=[made.uuid]))[-1] == now
    assert len(shown(reader, reverse("receipt", args=[made.uuid]))) == 3


def test_when_a_budget_begins_anew(reader: Client, user: User) -> None:
    set_budget(AuditOrigin(user=user), period="day", unit="usd", limit=10**6, warn_percent=80)
    before = timezone.now()
    [begins] = shown(reader, reverse("budgets"))
    assert begins.timetz() == time(tzinfo=UTC)
    assert before < begins <= timezone.now() + timedelta(days=1)


def test_which_time_a_sample_is_of(reader: Client, workspace: Workspace, user: User) -> None:
    say(create_session(workspace, owner=user), "Plant the beans")
    since, until = shown(reader, reverse("review_sample") + "?n=5&days=30")[:2]
    assert until - since == timedelta(days=30)


def test_since_when_a_session_is_on_hold(reader: Client, session: Session, user: User) -> None:
    hold_session(session, origin=AuditOrigin(user=user), reason="A dispute")
    assert len(shown(reader, reverse("holds"))) == 1
