"""Expiry: an expired session is read-only, stays readable and releases its key."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from conversations.agent.undo.records import ChangeScope, begin_revert
from conversations.archive.context import CompactionRequest, request_compaction
from conversations.archive.messages import accept_message, continue_run, edit_message, regenerate
from conversations.archive.runs import claim_next_run
from conversations.archive.session_records import list_sessions
from conversations.archive.sessions import (
    archive_session,
    create_session,
    get_or_create_by_key,
    get_session,
    list_due,
    open_empty_session,
    open_first_session,
    release_expired_key,
)
from conversations.archive.transcript import read_page
from conversations.domain.errors import Conflict
from conversations.models import Run, Session, Workspace
from tests.web.conftest import say

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def expire(session: Session, *, ago: timedelta = HOUR) -> None:
    Session.objects.filter(pk=session.pk).update(expires_at=timezone.now() - ago)
    session.refresh_from_db()


def test_session_expires_after_the_hours_of_its_workspace(workspace: Workspace, user: User) -> None:
    assert create_session(workspace, owner=user).expires_at is None
    workspace.expire_after_hours = 24
    session = create_session(workspace, owner=user)
    assert session.expires_at == session.created_at + 24 * HOUR


def test_session_can_have_its_own_expiry_time(workspace: Workspace, user: User) -> None:
    workspace.expire_after_hours = 24
    moment = timezone.now() + HOUR
    assert create_session(workspace, owner=user, expires_at=moment).expires_at == moment


WAYS: dict[str, Callable[[Session], Any]] = {
    "send": lambda s: accept_message(
        s, client_id="client-1", text="More", user_pk=None, max_queued=5
    ),
    "edit": lambda s: edit_message(s, client_id="client-1", turn=1, text="Other", user_pk=None),
    "regenerate": lambda s: regenerate(s, client_id="client-1", turn=None, user_pk=None),
    "continue": lambda s: continue_run(s, client_id="client-1", user_pk=None),
    "compact": lambda s: request_compaction(
        s, client_id="client-1", request=CompactionRequest(reason="manual"), user_pk=None
    ),
}


@pytest.mark.parametrize("is_archived", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_expired_session_accepts_no_more_runs(
    session: Session, way: str, is_archived: bool
) -> None:
    say(session, "Plant the beans", "In May")
    archive_session(session, archived=is_archived)
    expire(session)
    with pytest.raises(Conflict) as refused:
        WAYS[way](session)
    assert refused.value.code == "session_expired"
    assert "is read-only" in refused.value.message


def test_files_can_be_reverted_in_an_expired_session_unless_archived(session: Session) -> None:
    expire(session)
    begin_revert(session, scope=ChangeScope(), actor_pk=None)
    archive_session(session, archived=True)
    with pytest.raises(Conflict, match="archived"):
        begin_revert(session, scope=ChangeScope(), actor_pk=None)


def test_expired_session_stays_readable(session: Session) -> None:
    say(session, "Plant the beans", "In May")
    expire(session)
    assert len(read_page(get_session(session.uuid), limit=10).rows) == 2
    [item] = list_sessions(session.workspace, limit=10).items
    assert item.expired


def test_session_accepts_messages_until_it_expires(session: Session) -> None:
    expire(session, ago=-HOUR)
    WAYS["send"](session)


def test_key_of_an_expired_session_begins_a_new_session(workspace: Workspace, user: User) -> None:
    first = get_or_create_by_key(workspace, key="bead:1", owner=user)
    assert get_or_create_by_key(workspace, key="bead:1", owner=user) == first
    expire(first)
    second = get_or_create_by_key(workspace, key="bead:1", owner=user)
    assert second != first
    assert second.parent == first
    assert get_or_create_by_key(workspace, key="bead:1", owner=user) == second
    first.refresh_from_db()
    assert (first.key, first.former_key) == (None, "bead:1")


def test_new_session_has_its_parent_if_the_key_was_released_before(
    workspace: Workspace, user: User
) -> None:
    first = get_or_create_by_key(workspace, key="bead:1", owner=user)
    expire(first)
    assert release_expired_key(first.uuid, now=timezone.now())
    assert get_or_create_by_key(workspace, key="bead:1", owner=user).parent == first


def test_expiry_of_a_session_is_handled_once(
    workspace: Workspace, session: Session, user: User
) -> None:
    keyed = create_session(workspace, owner=user, key="bead:1")
    now = timezone.now()
    assert not list(list_due(now))
    expire(session)
    expire(keyed)
    assert [(due.uuid, due.key) for due in list_due(now)] == [
        (session.uuid, None),
        (keyed.uuid, "bead:1"),
    ]
    assert release_expired_key(keyed.uuid, now=now)
    assert not release_expired_key(keyed.uuid, now=now)
    assert [due.uuid for due in list_due(now)] == [session.uuid]


def test_expiry_that_was_postponed_is_not_handled(session: Session) -> None:
    expire(session)
    now = timezone.now()
    assert list(list_due(now))
    expire(session, ago=-HOUR)
    assert not release_expired_key(session.uuid, now=now)


def test_expired_empty_session_is_not_reused(workspace: Workspace, user: User) -> None:
    empty = open_empty_session(workspace, owner=user)
    assert open_first_session(user) == open_empty_session(workspace, owner=user) == empty
    expire(empty)
    fresh = open_empty_session(workspace, owner=user)
    assert fresh != empty
    assert open_first_session(user) == fresh


@pytest.mark.parametrize("hours", [None, 24])
@pytest.mark.parametrize("left", [None, timedelta(seconds=20)])
def test_reopened_unused_session_expires_like_a_new_one(
    workspace: Workspace, user: User, hours: int | None, left: timedelta | None
) -> None:
    workspace.expire_after_hours = hours
    unused = open_empty_session(workspace, owner=user)
    now = timezone.now()
    Session.objects.filter(pk=unused.pk).update(expires_at=left and now + left)
    again = open_empty_session(workspace, owner=user)
    assert again == unused
    for expires_at in (again.expires_at, get_session(unused.uuid).expires_at):
        is_as_new = expires_at and hours and expires_at >= now + hours * HOUR
        assert is_as_new if hours else expires_at is None


def test_message_queued_before_expiry_is_still_run(session: Session) -> None:
    first, waiting = (
        accept_message(session, client_id=name, text="Hi", user_pk=None, max_queued=5, owner="here")
        for name in ("client-1", "client-2")
    )
    expire(session)
    Run.objects.filter(uuid=first.run).update(state="completed")
    claimed = claim_next_run(session.pk, owner="here")
    assert claimed is not None
    assert claimed.run == waiting.run
