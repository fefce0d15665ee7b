"""Sessions with a key: finding, replacing and releasing."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from conversations.archive.sessions import (
    begin_anew,
    find_by_key,
    get_or_create_by_key,
    release_expired_key,
)
from conversations.models import PurgeOrder, Session, Workspace

KEY = "discord:thread:42"


def of_key(workspace: Workspace, user: User) -> Session:
    return get_or_create_by_key(workspace, key=KEY, owner=user)


@pytest.mark.django_db
def test_channel_is_taken_from_the_key(workspace: Workspace, user: User) -> None:
    assert of_key(workspace, user).channel == "discord"
    old = get_or_create_by_key(workspace, key="default", owner=user, channel="cli")
    assert old.channel == "cli"


@pytest.mark.django_db
def test_new_session_with_the_key_continues_the_old_one(workspace: Workspace, user: User) -> None:
    first = of_key(workspace, user)
    second = begin_anew(workspace, key=KEY, owner=user)
    assert second.parent == first
    assert of_key(workspace, user) == second
    third = begin_anew(workspace, key=KEY, owner=user)
    assert third.parent == second
    first.refresh_from_db()
    assert (first.key, first.former_key) == (None, KEY)


@pytest.mark.django_db
def test_former_key_is_kept_when_the_session_expires_later(
    workspace: Workspace, user: User
) -> None:
    first = of_key(workspace, user)
    begin_anew(workspace, key=KEY, owner=user)
    now = timezone.now()
    Session.objects.filter(pk=first.pk).update(expires_at=now)
    release_expired_key(first.uuid, now=now)
    first.refresh_from_db()
    assert first.former_key == KEY


@pytest.mark.django_db
def test_ordered_purge_releases_the_key(workspace: Workspace, user: User) -> None:
    first, now = of_key(workspace, user), timezone.now()
    order = PurgeOrder.objects.create(
        session=first, reason="Asked", ordered_at=now, due_at=now + timedelta(days=1)
    )
    assert find_by_key(workspace, KEY) is None
    second = of_key(workspace, user)
    assert second.parent == first
    order.delete()
    assert of_key(workspace, user) == second


@pytest.mark.django_db(transaction=True)
def test_concurrent_restarts_leave_one_session_with_the_key(
    workspace: Workspace, user: User
) -> None:
    first = of_key(workspace, user)
    found: list[Any] = []

    def begin() -> None:
        found.append(begin_anew(workspace, key=KEY, owner=user).key)
        connection.close()

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [KEY] * 4
    assert Session.objects.filter(workspace=workspace, key=KEY).count() == 1
    assert not Session.objects.filter(pk=first.pk, key=KEY).exists()
