"""Copies in a folder and in a bucket: there for certain, or nothing is purged."""

import gzip
import os
import stat
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.utils import timezone

from conversations.archive.attachments import save_attachment
from conversations.archive.audit import AuditOrigin
from conversations.archive.blobs import read_blob, remove_untouched
from conversations.archive.purge import PurgeRequest
from conversations.archive.sessions import get_session
from conversations.archive.verify import verify_session
from conversations.domain.errors import Conflict, NotFound, Rejected, Unavailable
from conversations.features.interchange.export_sessions import session_lines
from conversations.features.retention.cold_storage import keep_copy, open_copy
from conversations.features.retention.holds import hold_session
from conversations.features.retention.restore import restore_session
from conversations.features.retention.service import execute
from conversations.models import Attachment, Receipt, Session
from loomweb.cold_storage import read_cold_storage
from loomweb.env import SettingsError
from tests.archive.files import image_bytes
from tests.web.conftest import say

from .conftest import Configure, age_contents
from .s3 import serve_s3

pytestmark = pytest.mark.django_db


def purge_to_cold(session: Session, user: User) -> Receipt:
    return execute(
        get_session(session.uuid),
        order=PurgeRequest(reason="Tidying", by=user),
        origin=AuditOrigin(user=user),
        now=timezone.now(),
        to_cold_storage=True,
    )


def bring_back(session: Session, user: User) -> Receipt | None:
    return restore_session(
        session.uuid,
        origin=AuditOrigin(user=user),
        now=timezone.now(),
        default_owner=user,
        root=Path("/nonexistent"),
    )


def test_a_copy_is_the_sessions_lines_readable_by_the_server_alone(
    session: Session, cold_folder: Path
) -> None:
    say(session, "Plant the beans", "In May ☀")
    lines = list(session_lines(get_session(session.uuid)))
    copy = keep_copy(get_session(session.uuid))
    path = cold_folder / copy.name
    assert path == cold_folder / "garden" / f"{session.uuid}.jsonl.gz"
    assert gzip.decompress(path.read_bytes()).decode().splitlines() == lines
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with open_copy(copy.name, digest=copy.digest) as kept:
        assert kept.read().decode().splitlines() == lines


def test_a_purged_session_comes_back_as_it_was(
    session: Session, user: User, cold_folder: Path
) -> None:
    say(session, "Plant the beans", "In May", "And peas?")
    before = get_session(session.uuid)
    receipt = purge_to_cold(session, user)
    assert (cold_folder / receipt.cold_name).exists()
    assert bring_back(session, user) == receipt
    after = get_session(session.uuid)
    assert (after.turn_digest, after.event_digest) == (before.turn_digest, before.event_digest)
    assert (after.owner, after.workspace, after.title) == (user, before.workspace, before.title)
    assert after.archived_at is None
    assert verify_session(after).problem == ""


def test_a_second_copy_does_not_replace_the_first(
    session: Session, user: User, cold_folder: Path
) -> None:
    say(session, "Plant the beans")
    first = purge_to_cold(session, user)
    bring_back(session, user)
    say(get_session(session.uuid), "And peas?")
    second = purge_to_cold(session, user)
    assert first.cold_name != second.cold_name
    bring_back(session, user)
    assert get_session(session.uuid).turn_count == 2


def test_a_damaged_copy_is_not_brought_back(
    session: Session, user: User, cold_folder: Path
) -> None:
    say(session, "Plant the beans")
    receipt = purge_to_cold(session, user)
    path = cold_folder / receipt.cold_name
    path.write_bytes(gzip.compress(b'{"type": "session"}'))
    with pytest.raises(Rejected, match="not what was written"):
        bring_back(session, user)
    path.unlink()
    with pytest.raises(NotFound, match="has no"):
        bring_back(session, user)
    assert not Session.objects.exists()


def test_what_was_never_there_or_kept_is_not_brought_back(
    session: Session, user: User, cold_folder: Path
) -> None:
    with pytest.raises(Conflict, match="No purge"):
        bring_back(session, user)
    execute(
        session,
        order=PurgeRequest(reason="Tidying"),
        origin=AuditOrigin(user=user),
        now=timezone.now(),
    )
    with pytest.raises(NotFound, match="No copy of this session was kept"):
        bring_back(session, user)
    session.uuid = "00000000-0000-4000-8000-000000000000"
    with pytest.raises(NotFound, match="no session and no receipt"):
        bring_back(session, user)


def test_nothing_is_purged_where_the_copy_fails(
    session: Session, user: User, cold_folder: Path
) -> None:
    cold_folder.write_text("a file where the folder should be")
    with pytest.raises(Unavailable, match="Cold storage failed"):
        purge_to_cold(session, user)
    assert Session.objects.filter(pk=session.pk).exists()


def test_nothing_is_purged_without_cold_storage(session: Session, user: User) -> None:
    with pytest.raises(Rejected, match="no cold storage"):
        purge_to_cold(session, user)
    assert Session.objects.filter(pk=session.pk).exists()


def test_the_copy_goes_where_the_purge_is_refused(
    session: Session, user: User, cold_folder: Path
) -> None:
    hold_session(session, origin=AuditOrigin(user=user), reason="A dispute")
    with pytest.raises(Conflict, match="on hold"):
        purge_to_cold(session, user)
    assert [name for _, _, names in os.walk(cold_folder) for name in names] == []


@pytest.mark.django_db(transaction=True)
def test_the_copy_stays_where_nobody_knows_whether_the_purge_happened(
    session: Session, user: User, cold_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks after the database has taken the commit, before it says so."""
    say(session, "Plant the beans")
    commit = connection._commit

    def lose_the_answer() -> None:
        commit()
        raise OperationalError("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(connection, "_commit", lose_the_answer)
        with pytest.raises(OperationalError):
            purge_to_cold(session, user)
    assert not Session.objects.exists()
    bring_back(session, user)
    assert get_session(session.uuid).turn_count == 1


def test_what_is_attached_comes_back_or_nothing_does(
    session: Session, user: User, cold_folder: Path, configure: Configure
) -> None:
    data = image_bytes()
    turn = say(session, "Plant the beans")[0]
    save_attachment(session.pk, data=data, name="bed.png", user_pk=user.pk, turn=turn)
    purge_to_cold(session, user)
    configure(max_attachment_bytes=10)
    with pytest.raises(Conflict, match="at most 10 bytes"):
        bring_back(session, user)
    assert not Session.objects.exists()

    configure(max_attachment_bytes=10_000_000)
    now = timezone.now()
    age_contents(now - timedelta(hours=2))
    bring_back(session, user)
    [attachment] = Attachment.objects.all()
    assert read_blob(attachment.digest) == data
    # They count as used from then on, also for a removal that has begun before.
    assert not remove_untouched(attachment.digest, since=(now - timedelta(hours=1)).timestamp())


@pytest.fixture
def bucket(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    with serve_s3() as (address, objects):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_REGION", "eu-central-1")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        cold = read_cold_storage("s3://archive/loom/")
        settings.STORAGES = {**settings.STORAGES, "cold": cold}
        yield objects


@pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore")
def test_a_session_goes_to_a_bucket_and_comes_back(
    session: Session, user: User, bucket: dict[str, bytes]
) -> None:
    say(session, "Plant the beans", "In May")
    before = get_session(session.uuid)
    receipt = purge_to_cold(session, user)
    [(path, data)] = bucket.items()
    assert path == f"/archive/loom/garden/{session.uuid}.jsonl.gz"
    assert b"Plant the beans" in gzip.decompress(data)
    assert bring_back(session, user) == receipt
    assert get_session(session.uuid).turn_digest == before.turn_digest


def test_a_folder_has_an_absolute_path() -> None:
    with pytest.raises(SettingsError, match="no absolute path"):
        read_cold_storage("cold")


@pytest.mark.parametrize(
    ("setting", "said"), [("ftp://host/x", "a folder or s3"), ("s3://", "names no bucket")]
)
def test_other_addresses_are_refused(setting: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        read_cold_storage(setting)


def test_a_bucket_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loomweb.cold_storage.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="uv sync --extra s3"):
        read_cold_storage("s3://archive/loom")
