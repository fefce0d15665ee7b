"""Sessions: beginning, finding by key, listing and changing."""

import threading
from datetime import datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection

from conversations.archive.session_records import (
    SessionListFilters,
    SessionPage,
    change_session,
    list_sessions,
)
from conversations.archive.sessions import (
    archive_session,
    create_session,
    get_or_create_by_key,
    get_session,
    open_empty_session,
    open_first_session,
    pin_session,
    rename_session,
)
from conversations.domain.errors import NotFound, Rejected
from conversations.domain.turns import NewTurn
from conversations.models import Session, Workspace
from tests.archive.turns import append_turn

pytestmark = pytest.mark.django_db


def list_in(workspace: Workspace, **filters: Any) -> SessionPage:
    return list_sessions(workspace, filters=SessionListFilters(**filters), limit=9)


def test_unused_session_is_reused(workspace: Workspace, user: User) -> None:
    first = open_empty_session(workspace, owner=user)
    assert open_empty_session(workspace, owner=user) == first
    append_turn(first, NewTurn(role="user", content="hello"))
    assert open_empty_session(workspace, owner=user) != first


def test_person_begins_in_the_session_that_they_used_last(workspace: Workspace, user: User) -> None:
    session = open_first_session(user)
    assert session is not None
    append_turn(session, NewTurn(role="user", content="hello"))
    for program in (
        get_or_create_by_key(workspace, key="cron:nightly", owner=user),
        create_session(workspace, owner=user, channel="api"),
        create_session(workspace, owner=user, key="report:daily"),
    ):
        append_turn(program, NewTurn(role="user", content="hello"))
    assert open_first_session(user) == session


def test_person_without_a_workspace_gets_no_session(other_user: User) -> None:
    assert open_first_session(other_user) is None


@pytest.mark.django_db(transaction=True)
def test_key_is_created_once_by_many_callers(workspace: Workspace, user: User) -> None:
    found: list[Any] = []

    def find() -> None:
        found.append(get_or_create_by_key(workspace, key="cli:default", owner=user).pk)
        connection.close()

    threads = [threading.Thread(target=find) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1


def test_list_filters_pins_and_archives(workspace: Workspace, user: User) -> None:
    beans = create_session(workspace, owner=user, title="Beans")
    peas = create_session(workspace, owner=user, title="Peas")
    pin_session(beans, pinned=True)
    assert [i.title for i in list_sessions(workspace, limit=9).items] == ["Beans", "Peas"]
    assert [i.title for i in list_in(workspace, query="pea").items] == ["Peas"]
    archive_session(peas, archived=True)
    assert [i.title for i in list_sessions(workspace, limit=9).items] == ["Beans"]
    assert [i.title for i in list_in(workspace, archived=True).items] == ["Peas"]


@pytest.mark.parametrize("pinned", range(7))
def test_all_sessions_are_paged_with_any_number_of_pins(
    workspace: Workspace, user: User, pinned: int
) -> None:
    made = [create_session(workspace, owner=user) for _ in range(6)]
    for session in made[:pinned]:
        pin_session(session, pinned=True)
    listed, before = [], ""
    for _ in made:
        page = list_sessions(workspace, before=before, limit=2)
        listed += [item.pk for item in page.items]
        if not (before := page.next_cursor):
            break
    order = [*reversed(made[:pinned]), *reversed(made[pinned:])]
    assert listed == [session.pk for session in order]


def test_repeated_archiving_or_pinning_keeps_the_first_time(session: Session) -> None:
    def times() -> dict[str, datetime | None]:
        return Session.objects.values("archived_at", "pinned_at").get()

    pin_session(session, pinned=True)
    assert archive_session(session, archived=True)
    since = times()
    pin_session(session, pinned=True)
    assert not archive_session(session, archived=True)
    assert times() == since
    assert not archive_session(session, archived=False)
    pin_session(session, pinned=False)
    assert times() == {"archived_at": None, "pinned_at": None}
    assert change_session(session, {"archived": True})
    assert not change_session(session, {"archived": True})


def test_title_is_one_short_line(session: Session) -> None:
    assert rename_session(session, title=" a\n b ") == "a b"
    with pytest.raises(Rejected):
        rename_session(session, title=" \n ")


def test_unknown_session_is_not_found(session: Session) -> None:
    unknown = type(session.uuid)(int=7)
    with pytest.raises(NotFound):
        get_session(unknown)
