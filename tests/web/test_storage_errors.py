"""A page that only reads is made once more when its connection was lost; nothing is done twice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.test import Client
from django.urls import reverse
from psycopg.errors import AdminShutdown

from conversations.archive.audit import AuditOrigin
from conversations.features.sharing.models import ShareLink
from conversations.features.sharing.service import NewLink, create_share_link, share_token
from conversations.models import Session

from .conftest import MakePerson, browser_of, say

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def lost_after(is_last: Callable[[str], bool]) -> Iterator[list[str]]:
    """The connection is lost once, before the answer to such a statement comes. Gives the
    statements of this kind."""
    found: list[str] = []

    def execute(run: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = run(sql, params, many, context)
        if is_last(sql):
            found.append(sql)
            if len(found) == 1:
                raise OperationalError from AdminShutdown("the server ends")
        return result

    with connection.execute_wrapper(execute):
        yield found


def test_what_only_reads_is_read_once_more(owner: Client, session: Session) -> None:
    owner.raise_request_exception = False
    with lost_after(lambda sql: sql.startswith("SELECT") and "conversations_session" in sql):
        assert owner.get(reverse("session", args=[session.uuid])).status_code == 200


def test_an_opening_is_counted_once(
    client: Client, session: Session, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "share_links", True)
    say(session, "Plant the beans")
    new = NewLink(from_turn=1, to_turn=1, days=3, with_tools=False)
    link = create_share_link(session, new, origin=AuditOrigin(user=user))
    client.raise_request_exception = False
    with lost_after(lambda sql: sql.startswith("UPDATE") and "sharelink" in sql) as counted:
        assert client.get(reverse("shared", args=[share_token(link)])).status_code == 503
    assert len(counted) == 1
    assert ShareLink.objects.get(pk=link.pk).opened_count == 1


def test_a_reading_is_entered_once(session: Session, make_person: MakePerson) -> None:
    reviewer = browser_of(make_person("reviewer"))
    reviewer.raise_request_exception = False
    with lost_after(lambda sql: sql.startswith("INSERT") and "auditentry" in sql) as entered:
        assert reviewer.get(reverse("session", args=[session.uuid])).status_code == 503
    assert len(entered) == 1
