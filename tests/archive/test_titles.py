"""Titles of sessions contain no invisible characters, whatever their source."""

import pytest
from django.contrib.auth.models import User
from django.db import connection

from conversations.archive.sessions import create_session, rename_session
from conversations.domain.errors import Rejected
from conversations.models import Session, Workspace
from tests.web.conftest import say

pytestmark = pytest.mark.django_db

HOSTILE = "Ro\x1b[31mses\x85\u202e\u200b \u2066and\x07\n\tbeans\x9b"
PLAIN = "Ro [31mses and beans"


def test_titles_are_stored_without_invisible_characters(workspace: Workspace, user: User) -> None:
    session = create_session(workspace, owner=user, title=HOSTILE)
    assert session.title == PLAIN
    assert rename_session(session, title=HOSTILE) == PLAIN
    first = create_session(workspace, owner=user)
    say(first, HOSTILE, "In May")
    first.refresh_from_db()
    assert first.title == PLAIN, "made of the first message"
    with pytest.raises(Rejected, match="at least one character"):
        rename_session(session, title="\u202e\x1b")


def test_stored_titles_are_read_without_invisible_characters(session: Session) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE conversations_session SET title = %s", ["A\x1bB\u202eC"])
    assert Session.objects.get().title == "A BC"
    assert list(Session.objects.values_list("title", flat=True)) == ["A BC"]
