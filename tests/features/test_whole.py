"""Tests that need all features (``scripts.without`` leaves this file out)."""

import os
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from conversations.archive.attachments import upload_attachment
from conversations.archive.audit import AuditOrigin
from conversations.archive.blobs import blob_path, has_blob
from conversations.archive.purge import PurgeRequest, purge
from conversations.models import Session, Workspace
from tests.test_docs import DESCRIBED_METRICS, METRICS
from tests.test_logs import DESCRIBED_EVENTS, read_logged
from tests.test_security_docs import DOCUMENT, ROW
from tests.web.conftest import make_person, owner  # noqa: F401 (fixtures)


@pytest.mark.django_db
def test_models_match_the_migrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "MIGRATION_MODULES", {})  # the test database is made without any
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_every_documented_metric_exists() -> None:
    assert DESCRIBED_METRICS == METRICS


def test_every_documented_log_event_exists() -> None:
    logged, _ = read_logged()
    assert set(DESCRIBED_EVENTS) == set(logged)
    assert len(logged) > 60


def test_every_test_in_the_table_of_attacks_exists() -> None:
    for test, _ in ROW.findall(DOCUMENT.read_text()):
        assert Path(test.partition("::")[0]).is_file(), test


def share_file(owner: Client, workspace: Workspace, data: bytes) -> tuple[str, str]:  # noqa: F811
    """Share a file and return the link's uuid and the digest of its blob, which looks unused."""
    (Path(workspace.root) / "plan.md").write_bytes(data)
    owner.post("/w/garden/files/share/?path=plan.md", {"days": "1"})
    link = apps.get_model("conversations", "FileLink").objects.get()
    old = (timezone.now() - timedelta(days=1)).timestamp()
    os.utime(blob_path(link.digest), (old, old))
    return str(link.uuid), str(link.digest)


@pytest.mark.django_db
def test_a_file_link_keeps_a_blob_of_a_purged_session_until_revoked(
    owner: Client,  # noqa: F811
    session: Session,
    workspace: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings.LOOM, "share_links", True)
    monkeypatch.setattr(settings.LOOM, "data_dir", tmp_path / "data")
    data, now = b"# The plan\n", timezone.now()
    upload_attachment(session.pk, data=data, name="plan.md", user_pk=session.owner_id)
    uuid, digest = share_file(owner, workspace, data)
    purge(session, order=PurgeRequest(reason="Mine"), origin=AuditOrigin(name="t"), now=now)
    call_command("expire_sessions", stdout=StringIO())
    assert has_blob(digest)
    owner.post(reverse("file_share_revoke", args=["garden", uuid]))
    call_command("expire_sessions", stdout=StringIO())
    assert not has_blob(digest)


@pytest.mark.django_db
@pytest.mark.parametrize("is_revoked", [True, False])
def test_the_blob_of_a_revoked_or_expired_file_link_is_deleted(
    owner: Client,  # noqa: F811
    workspace: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_revoked: bool,
) -> None:
    monkeypatch.setattr(settings.LOOM, "share_links", True)
    monkeypatch.setattr(settings.LOOM, "data_dir", tmp_path / "data")
    uuid, digest = share_file(owner, workspace, b"Only in this link")
    call_command("expire_sessions", stdout=StringIO())
    assert has_blob(digest)
    if is_revoked:
        owner.post(reverse("file_share_revoke", args=["garden", uuid]))
    else:
        links = apps.get_model("conversations", "FileLink").objects
        links.update(expires_at=timezone.now() - timedelta(seconds=1))
    call_command("expire_sessions", stdout=StringIO())
    assert not has_blob(digest)
