"""After a lost connection, a page that only reads is made again, and no write is repeated."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.urls import reverse
from psycopg.errors import AdminShutdown

from conversations.models import Session

from .conftest import MakePerson, browser_of

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def lost_after(is_last: Callable[[str], bool]) -> Iterator[list[str]]:
    """Lose the connection once, before the answer to a matching statement arrives.

    Yield the list of matching statements.
    """
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


def test_page_that_only_reads_is_made_again(owner: Client, session: Session) -> None:
    owner.raise_request_exception = False
    with lost_after(lambda sql: sql.startswith("SELECT") and "conversations_session" in sql):
        assert owner.get(reverse("session", args=[session.uuid])).status_code == 200


def test_reading_is_not_recorded_twice(session: Session, make_person: MakePerson) -> None:
    reviewer = browser_of(make_person("reviewer"))
    reviewer.raise_request_exception = False
    with lost_after(lambda sql: sql.startswith("INSERT") and "auditentry" in sql) as entered:
        assert reviewer.get(reverse("session", args=[session.uuid])).status_code == 503
    assert len(entered) == 1
