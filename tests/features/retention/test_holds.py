"""Holds, which keep sessions from being purged."""

import pytest
from django.contrib.auth.models import User

from conversations.archive.audit import AuditOrigin
from conversations.archive.sessions import create_session
from conversations.domain.audit import HOLD, RELEASE
from conversations.domain.errors import Conflict, NotFound, Rejected
from conversations.features.retention.service import place_hold, release_hold
from conversations.models import AuditEntry, Session, Workspace
from tests.archive.test_purge import remove

pytestmark = pytest.mark.django_db


def test_a_session_on_hold_cannot_be_purged(session: Session, user: User) -> None:
    hold = place_hold(session, origin=AuditOrigin(user=user), reason="A dispute")
    with pytest.raises(Conflict, match="on hold: A dispute"):
        remove(session, user)
    release_hold(hold.pk, origin=AuditOrigin(user=user))
    assert remove(session, user).session == session.uuid


def test_a_hold_on_a_workspace_protects_all_its_sessions(
    workspace: Workspace, session: Session, user: User
) -> None:
    hold = place_hold(workspace, origin=AuditOrigin(user=user), reason="A dispute")
    later = create_session(workspace, owner=user)
    for held in (session, later):
        with pytest.raises(Conflict, match="workspace is on hold"):
            remove(held, user)
    release_hold(hold.pk, origin=AuditOrigin(user=user))
    remove(later, user)
    actions = AuditEntry.objects.order_by("number").values_list("action", "workspace")
    assert list(actions)[:2] == [(HOLD, "garden"), (RELEASE, "garden")]


def test_a_hold_needs_a_reason_and_is_released_once(session: Session, user: User) -> None:
    with pytest.raises(Rejected, match="Enter a reason"):
        place_hold(session, origin=AuditOrigin(user=user), reason="  ")
    hold = place_hold(session, origin=AuditOrigin(user=user), reason="A dispute")
    release_hold(hold.pk, origin=AuditOrigin(user=user))
    with pytest.raises(Conflict, match="already released"):
        release_hold(hold.pk, origin=AuditOrigin(user=user))
    with pytest.raises(NotFound):
        release_hold(hold.pk + 1, origin=AuditOrigin(user=user))
