"""The sessions in the download of a person's own data."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from conversations.archive.attachments import save_attachment
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import add_member, remove_member
from conversations.features.interchange.export import session_lines
from conversations.models import Session, Workspace
from tests.archive.files import image_bytes
from tests.web.conftest import browser_of, say
from tests.web.test_own_account import export

pytestmark = pytest.mark.django_db


def test_own_data_exports_only_the_persons_sessions(
    session: Session, workspace: Workspace, user: User, other_user: User
) -> None:
    say(session, "Plant the beans", "In May")
    attached = save_attachment(
        session.pk, data=image_bytes(), name="bed.png", user_pk=user.pk, turn=1
    )
    add_member(workspace, user_pk=other_user.pk, role="member")
    say(create_session(workspace, owner=other_user), "A secret of bob")
    text = export(browser_of(user))["sessions.jsonl"]
    assert text.splitlines() == list(session_lines(session))
    assert str(attached.uuid) in text
    assert "secret" not in text


def test_own_data_omits_sessions_in_a_workspace_that_was_left(
    workspace: Workspace, other_user: User
) -> None:
    add_member(workspace, user_pk=other_user.pk, role="member")
    say(create_session(workspace, owner=other_user), "Plant the peas")
    client: Client = browser_of(other_user)
    assert "peas" in export(client)["sessions.jsonl"]
    remove_member(workspace, user_pk=other_user.pk)
    assert export(client)["sessions.jsonl"] == ""
